"""How each server is started for `bench.peers`, ours among them. Knows nothing of the load."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from bench.peers.hugging_face import hugging_face_folder
from services.domain.kv_layout import KvFormat

START_LIMIT_S = 600.0
CORES = len(psutil.Process().cpu_affinity() or [1])
"""Ours takes all that there are; so does each peer."""
QUIRE_OFFSET = 4000
PEER_PORT = 18_080
MODEL = "smollm2-135m-instruct"
QUIRE_CONFIG = """
[worker]
max_sequences = 32
kv_memory = "1GiB"
kv_format = "{kv}"
"""


class Unavailable(Exception):
    """A server cannot be measured on this machine; the text says why in one line."""


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
    kv: KvFormat | None = None
    """KV format of ours; None: a peer."""


def peers_folder() -> Path:
    """Return where `install.sh` put them."""
    return Path(os.environ.get("QUIRE_PEERS", "~/.cache/quire-peers")).expanduser()


def server_of(name: str, gguf: Path, folder: Path) -> Server:
    """Return the server that `name` means: quire[:KV], llama:KIND or vllm:DTYPE.

    Args:
        gguf: The model as shipped; peers get it converted, once.
        folder: Of this run, for our configuration.

    Raises:
        Unavailable: It is not installed.
        SystemExit: There is no such server.
    """
    kind, _, detail = name.partition(":")
    if kind == "quire":
        return _quire(folder, KvFormat(detail or KvFormat.INT8))
    if kind == "llama":
        return _llama(gguf, detail or "Q4_0")
    if kind == "vllm":
        return _vllm(gguf, detail or "bfloat16")
    raise SystemExit(f"unknown server {name}: quire[:KV], llama:KIND or vllm:DTYPE")


def _quire(folder: Path, kv: KvFormat) -> Server:
    """Return our own suite, all processes of it."""
    config = folder / f"quire-{kv}.toml"
    config.write_text(QUIRE_CONFIG.format(kv=kv))
    up = (sys.executable, "-m", "services.cli", "up", "--port-offset", str(QUIRE_OFFSET))
    return Server(
        name=f"quire {kv} KV",
        command=(*up, "--config", str(config)),
        url=f"http://127.0.0.1:{8000 + QUIRE_OFFSET}",
        model=MODEL,
        ready="/v1/models",
        kv=kv,
    )


def _llama(gguf: Path, kind: str) -> Server:
    """Return llama.cpp's server on the shipped file requantised to `kind`."""
    home = peers_folder() / "llama"
    _check_installed(home / "llama-server", home / "llama-quantize")
    model = home / f"{MODEL}-{kind}.gguf"
    if not model.exists():
        partial = model.with_suffix(".partial")
        command = [str(home / "llama-quantize"), "--allow-requantize", str(gguf), str(partial), kind]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Unavailable(f"llama-quantize to {kind}: {_reason(done.stdout + done.stderr)}")
        partial.rename(model)
    limits = ("-t", str(CORES), "-tb", str(CORES), "-np", "32", "-c", "40960", "-b", "2048", "-ub", "512")
    return Server(
        name=f"llama.cpp {kind}",
        command=(
            *(str(home / "llama-server"), "-m", str(model), "--port", str(PEER_PORT)),
            *(*limits, "-cb", "-fa", "off", "--no-webui"),
        ),
        url=f"http://127.0.0.1:{PEER_PORT}",
        model=MODEL,
        ready="/health",
    )


def _vllm(gguf: Path, dtype: str) -> Server:
    """Return vLLM's CPU build on the shipped file's numbers as a Hugging Face folder."""
    home = peers_folder() / "vllm"
    _check_installed(home / "bin" / "vllm")
    folder = hugging_face_folder(gguf, peers_folder() / MODEL)
    serve = (str(home / "bin" / "vllm"), "serve", str(folder), "--port", str(PEER_PORT), "--dtype", dtype)
    limits = ("--max-model-len", "2048", "--max-num-seqs", "32", "--enable-prefix-caching")
    return Server(
        name=f"vllm {dtype}",
        command=(*serve, *limits, "--served-model-name", MODEL),
        url=f"http://127.0.0.1:{PEER_PORT}",
        model=MODEL,
        ready="/health",
        environment={"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": f"0-{CORES - 1}"},
    )


def _check_installed(*programs: Path) -> None:
    for program in programs:
        if not program.exists():
            raise Unavailable(f"{program} is not there: run `make peers`")


@contextmanager
def running(server: Server, log: Path) -> Iterator[float]:
    """Run a server until the block ends; yields the seconds until it was ready.

    Raises:
        Unavailable: It ended, or was not ready in time; says what its log says.
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
                if (status := process.poll()) is not None:
                    raise Unavailable(f"{_ended(status)} while starting: {_reason(log.read_text())}")
                if time.monotonic() - began > START_LIMIT_S:
                    raise Unavailable(f"not ready after {START_LIMIT_S:.0f} s: {_reason(log.read_text())}")
                time.sleep(0.1)
            yield time.monotonic() - began
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a server and what it started, gently first."""
    me = psutil.Process(process.pid) if process.poll() is None else None
    children = me.children(recursive=True) if me is not None else []
    process.terminate()
    try:
        process.wait(timeout=40)
    except subprocess.TimeoutExpired:
        process.kill()
    _, left = psutil.wait_procs(children, timeout=20)
    for child in left:
        child.kill()


def _ended(status: int) -> str:
    """Say how a process ended; `Illegal instruction` is a program for another CPU."""
    return f"ended with status {status}" if status >= 0 else f"ended by {signal.strsignal(-status)}"


def _is_ready(server: Server) -> bool:
    try:
        return httpx.get(server.url + server.ready, timeout=1.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _reason(log: str) -> str:
    """Return the line of a log that says most: the first that names an error, else the last."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "error:" in line or "Illegal" in line]
    return (told or lines or ["its log is empty"])[0 if told else -1][-300:]
