"""How each server is started for `bench.peers`, ours among them. Knows nothing of the load."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

START_LIMIT_S = 300.0
QUIRE_OFFSET = 4000
PEER_PORT = 18_080
MODEL = "smollm2-135m-instruct"
QUIRE_CONFIG = """
[worker]
max_sequences = 32
kv_memory = "1GiB"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One way to serve the model over HTTP."""

    name: str
    command: tuple[str, ...]
    url: str
    model: str
    ready: str
    """Path that answers 200 once requests are served."""
    environment: Mapping[str, str] = field(default_factory=dict)


def peers_folder() -> Path:
    """Return where `install.sh` put them."""
    return Path(os.environ.get("QUIRE_PEERS", "~/.cache/quire-peers")).expanduser()


def quire(folder: Path, *flags: str) -> Server:
    """Return our own suite, all processes of it, with worker settings from `flags`."""
    config = folder / "quire.toml"
    config.write_text(QUIRE_CONFIG)
    command = (sys.executable, "-m", "services.cli", "up", "--port-offset", str(QUIRE_OFFSET))
    return Server(
        name="quire" + "".join(f" {flag}" for flag in flags),
        command=(*command, "--config", str(config), *flags),
        url=f"http://127.0.0.1:{8000 + QUIRE_OFFSET}",
        model=MODEL,
        ready="/v1/models",
    )


def llama(gguf: Path, kind: str) -> Server:
    """Return llama.cpp's server on the shipped file requantised to `kind`, made once."""
    home = peers_folder() / "llama"
    model = home / f"{MODEL}-{kind}.gguf"
    if not model.exists():
        command = [home / "llama-quantize", "--allow-requantize", gguf, model, kind]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    flags = [
        "-t",
        "2",
        "-tb",
        "2",
        "-np",
        "32",
        "-c",
        "40960",
        "-b",
        "2048",
        "-ub",
        "512",
        "-cb",
        "-fa",
        "off",
        "--no-webui",
    ]
    return Server(
        name=f"llama.cpp {kind}",
        command=(str(home / "llama-server"), "-m", str(model), "--port", str(PEER_PORT), *flags),
        url=f"http://127.0.0.1:{PEER_PORT}",
        model=MODEL,
        ready="/health",
    )


def vllm(folder: Path, dtype: str) -> Server:
    """Return vLLM's CPU build on a Hugging Face folder of the model."""
    home = peers_folder() / "vllm"
    flags = [
        "--max-model-len",
        "2048",
        "--max-num-seqs",
        "32",
        "--enable-prefix-caching",
        "--served-model-name",
    ]
    serve = (str(home / "bin" / "vllm"), "serve", str(folder), "--port", str(PEER_PORT), "--dtype", dtype)
    return Server(
        name=f"vllm {dtype}",
        command=(*serve, *flags, MODEL),
        url=f"http://127.0.0.1:{PEER_PORT}",
        model=MODEL,
        ready="/health",
        environment={"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "0-1"},
    )


@contextmanager
def running(server: Server, log: Path) -> Iterator[float]:
    """Run a server until the block ends; yields the seconds until it was ready.

    Raises:
        RuntimeError: It ended, or was not ready in time; its log says why.
    """
    began = time.monotonic()
    with (
        log.open("w") as output,
        subprocess.Popen(
            server.command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **server.environment},
        ) as process,
    ):
        try:
            while not _is_ready(server):
                if process.poll() is not None or time.monotonic() - began > START_LIMIT_S:
                    raise RuntimeError(f"{server.name} did not come up; see {log}")
                time.sleep(0.1)
            yield time.monotonic() - began
        finally:
            children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.terminate()
            process.wait()
            psutil.wait_procs(children, timeout=20)


def _is_ready(server: Server) -> bool:
    try:
        return httpx.get(server.url + server.ready, timeout=1.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
