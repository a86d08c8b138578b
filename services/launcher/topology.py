"""Which processes one machine runs, with which ports and commands, and who waits for whom. Pure.

Knows flags and ports; starts nothing and looks at nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from urllib.parse import quote

from services.launcher.ports import LOOPBACK, Ports

CHILD_ENVIRONMENT = {
    # OpenMP's spinning threads starve everything else on a small machine.
    "GOMP_SPINCOUNT": "10000",
    "TOKENIZERS_PARALLELISM": "false",
    # gRPC polls in the thread that waits for a message instead of handing it through a pool of threads, which
    # costs two thirds more switches. Read when gRPC is imported, so it cannot be set from within.
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
}
"""What children are started with where the operator's own environment does not say otherwise."""


GUARD = "services.launcher.guard"
"""The module that runs a foreign program, and ends it when the launcher has gone."""

REDIS_LOG = "redis-log"
"""Below the folder of a run: what our own Redis finds again when it is started again."""


class Health(Enum):
    """How a process says that it is up."""

    GRPC = "grpc"
    """grpc.health.v1 on its port answers SERVING."""
    REDIS = "redis"
    """PING on its port answers PONG."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model to serve."""

    name: str
    path: Path

    def flag(self) -> str:
        return f"{self.name}={self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What to run."""

    models: Sequence[Model]
    num_workers: int
    sim: bool
    python: str
    ports: Ports = field(default_factory=Ports)
    host: str = LOOPBACK
    """Where the public doors listen; everything behind them stays on loopback."""
    redis_url: str | None = None
    """None: run our own."""
    redis_binary: str | None = None
    redis_folder: Path | None = None
    journal: Path | None = None
    """Where the gateway keeps settlements that Redis does not take."""
    insecure: bool = False
    kv_memory: int | None = None
    """Bytes per worker; None: each worker decides."""
    trace: str = "none"
    log_level: str = "info"
    server_key: str | None = field(default=None, repr=False)
    """The gateway's secret for this run; None: its configuration or environment has one."""
    admin_key: str | None = field(default=None, repr=False)
    """What opens the gateway's admin door in this run; None: its configuration or environment says."""
    threads: int | None = None
    """Threads of each worker; None: each worker decides."""
    num_gpus: int = 0
    """NVIDIA GPUs of this machine, shared out among the workers."""
    has_tls: bool = False
    """Whether the configuration or the environment has `[tls]`; the services read it themselves, and our own
    Redis listens on no port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process to start and keep."""

    name: str
    command: tuple[str, ...]
    port: int
    health: Health = Health.GRPC
    other_ports: tuple[int, ...] = ()
    probe_port: int | None = None
    socket: Path | None = None
    """Where it listens in place of a port."""
    needs: tuple[str, ...] = ()
    """Started only when these are up."""
    waits_for: tuple[str, ...] = ()
    """Started at once, but up only after these."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def role(self) -> str:
        """What it does: several workers have one role."""
        return self.name.partition("-")[0]

    @property
    def ports(self) -> tuple[int, ...]:
        if self.socket is not None:
            return ()
        probe = () if self.probe_port is None else (self.probe_port,)
        return (self.port, *self.other_ports, *probe)


def plan(suite: Suite) -> tuple[Process, ...]:
    """Return the processes of `suite` in the order of their start; the reverse is the order of their end.

    Workers are dealt to the models in turn.

    Raises:
        ValueError: Fewer workers than models.
    """
    if suite.num_workers < len(suite.models):
        raise ValueError(
            f"workers must be at least {len(suite.models)}, one per model, got {suite.num_workers}"
        )
    redis = () if suite.redis_url else (_redis(suite),)
    workers = tuple(_worker(suite, index) for index in range(suite.num_workers))
    return (*redis, _kvmanager(suite), _scheduler(suite), *workers, _gateway(suite))


def redis_url(suite: Suite) -> str:
    if (socket := redis_socket(suite)) is not None:
        return f"unix://{quote(str(socket))}"
    return suite.redis_url or f"redis://{LOOPBACK}:{suite.ports.redis}/0"


def redis_socket(suite: Suite) -> Path | None:
    """Return where our own Redis listens when nothing may be in plain text on a network, loopback included.

    The Redis that comes with us was built without TLS; a socket that only its user may open needs none.
    """
    if not suite.has_tls or suite.redis_url is not None:
        return None
    assert suite.redis_folder is not None
    return suite.redis_folder / "redis.sock"


def _redis(suite: Suite) -> Process:
    assert suite.redis_binary is not None
    assert suite.redis_folder is not None
    socket = redis_socket(suite)
    server: tuple[str, ...] = (suite.redis_binary, "--port", str(suite.ports.redis), "--bind", LOOPBACK)
    if socket is not None:
        server = (suite.redis_binary, "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700")
    # Started again after a crash, it goes on with the keys, counters and tenants of this run.
    # No fsync: what the kernel holds outlives the process, and no other run ever reads it.
    log = ("--save", "", "--appendonly", "yes", "--appendfsync", "no", "--appenddirname", REDIS_LOG)
    # Its housekeeping twice a second, not ten times: it holds little, and what has expired is never served.
    seldom = ("--hz", "2")
    return Process(
        name="redis",
        command=(suite.python, "-m", GUARD, *server, *log, *seldom, "--dir", str(suite.redis_folder)),
        port=suite.ports.redis,
        socket=socket,
        health=Health.REDIS,
    )


def _kvmanager(suite: Suite) -> Process:
    ports = suite.ports
    return _service(
        suite,
        "kvmanager",
        ("--redis-url", redis_url(suite), "--expect-workers", str(suite.num_workers)),
        port=ports.kvmanager,
        probe_port=ports.kvmanager_probe(),
        needs=() if suite.redis_url else ("redis",),
    )


def _scheduler(suite: Suite) -> Process:
    ports = suite.ports
    return _service(
        suite,
        "scheduler",
        ("--kvmanager", f"{LOOPBACK}:{ports.kvmanager}", "--redis-url", redis_url(suite)),
        port=ports.scheduler,
        probe_port=ports.scheduler_probe(),
        waits_for=("kvmanager",),
    )


def _worker(suite: Suite, index: int) -> Process:
    ports, model = suite.ports, suite.models[index % len(suite.models)]
    flags = [
        *("--name", f"worker-{index}", "--model", model.flag()),
        *(("--executor", "sim") if suite.sim else ()),
        *("--scheduler", f"{LOOPBACK}:{ports.scheduler}", "--kvmanager", f"{LOOPBACK}:{ports.kvmanager}"),
    ]
    if suite.kv_memory is not None:
        flags += ["--kv-memory", str(suite.kv_memory)]
    if suite.threads is not None:
        flags += ["--threads", str(suite.threads)]
    return _service(
        suite,
        "worker",
        tuple(flags),
        name=f"worker-{index}",
        port=ports.worker(index),
        probe_port=ports.worker_probe(index),
        waits_for=("scheduler", "kvmanager"),
        environment=_gpus(suite, index),
    )


def _gpus(suite: Suite, index: int) -> Mapping[str, str]:
    """Return which GPUs a worker sees: an equal share, one at least (8 for 3 workers: 0,1 2,3 4,5)."""
    share = max(1, suite.num_gpus // suite.num_workers)
    seen = [str((index * share + i) % max(1, suite.num_gpus)) for i in range(share)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(seen)} if min(suite.num_gpus, suite.num_workers) > 1 else {}


def _gateway(suite: Suite) -> Process:
    ports = suite.ports
    flags = ["--name", "gateway-0", "--http-port", str(ports.http), "--admin-port", str(ports.admin)]
    flags += ["--scheduler", f"{LOOPBACK}:{ports.scheduler}", "--redis-url", redis_url(suite)]
    if suite.journal is not None:
        flags += ["--journal", str(suite.journal)]
    if suite.has_tls:
        flags += ["--certificate-port", str(ports.certificate)]
    for model in suite.models:
        flags += ["--model", model.flag()]
    return _service(
        suite,
        "gateway",
        tuple(flags),
        host=suite.host,
        port=ports.gateway,
        probe_port=ports.gateway_probe(),
        other_ports=(ports.http, ports.admin, *((ports.certificate,) if suite.has_tls else ())),
        needs=() if suite.redis_url else ("redis",),
        waits_for=("scheduler",),
        environment={
            name: value
            for name, value in (
                ("QUIRE_GATEWAY_SERVER_KEY", suite.server_key),
                ("QUIRE_GATEWAY_ADMIN_KEY", suite.admin_key),
            )
            if value is not None
        },
    )


def _service(
    suite: Suite,
    module: str,
    flags: tuple[str, ...],
    *,
    port: int,
    probe_port: int,
    name: str | None = None,
    host: str = LOOPBACK,
    other_ports: tuple[int, ...] = (),
    needs: tuple[str, ...] = (),
    waits_for: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Process:
    shared = ["--host", host, "--port", str(port), "--probe-port", str(probe_port)]
    shared += ["--trace", suite.trace, "--log-level", suite.log_level]
    if suite.insecure and host != LOOPBACK:
        shared.append("--insecure")
    return Process(
        name=name or module,
        command=(suite.python, "-m", module, *shared, *flags),
        port=port,
        probe_port=probe_port,
        other_ports=other_ports,
        needs=needs,
        waits_for=waits_for,
        environment={**CHILD_ENVIRONMENT, **(environment or {})},
    )
