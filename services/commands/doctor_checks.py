"""What is fine about a machine, what is not, and what to do: one finding for each matter. Pure.

Knows what a suite needs and where it would run; looks at nothing itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from services.commands.doctor_facts import Facts
from worker.amd_driver import AmdDriver
from worker.memory import HOST_FRACTION, MIB
from worker.memory_plan import PROCESS_BYTES

NEEDED_BYTES = 5 * PROCESS_BYTES + 128 * MIB
"""Four services, a worker and the built-in model, before any KV."""
ROOMY_BYTES = 2048 * MIB
CACHE_BYTES = 1024 * MIB
"""Room for a small model, its packed weights and compiled code."""
CLOCK_LIMIT_S = 2.0


class Verdict(StrEnum):
    """How a matter stands."""

    OK = "ok"
    LOOK = "look"
    """It works, and could be better."""
    MISSING = "missing"
    """`quire up` would not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One matter."""

    topic: str
    verdict: Verdict
    found: str
    remedy: str | None = None


def check(facts: Facts) -> tuple[Finding, ...]:
    """Return all findings, in the order in which one would mend them."""
    return tuple(_check(facts))


def _check(facts: Facts) -> Iterator[Finding]:
    yield _driver(facts)
    yield _triton(facts)
    yield _compiler(facts)
    yield _instruction_sets(facts)
    yield _executor(facts)
    yield _huge_pages(facts)
    yield _memory(facts)
    yield _ports(facts)
    yield _clock(facts)
    yield _redis(facts)
    yield _cache(facts)


def _driver(facts: Facts) -> Finding:
    if facts.nodes.nvidia:
        if facts.driver is None:
            remedy = "install the driver's libraries, or run the container with the NVIDIA runtime"
            return Finding("driver", Verdict.LOOK, f"a GPU, but {facts.driver_error}", remedy)
        return Finding("driver", Verdict.OK, facts.driver)
    if facts.amd is not None:
        return _amd_driver(facts.amd)
    return Finding("driver", Verdict.OK, "no GPU here, so none is needed")


def _amd_driver(driver: AmdDriver) -> Finding:
    found = f"AMD {driver.version}"
    if not driver.gpus:
        remedy = "look at what the kernel says (dmesg | grep amdgpu), or give the container /dev/dri"
        return Finding("driver", Verdict.LOOK, f"{found}, but no GPU", remedy)
    found += f" with {', '.join(driver.gpus)}"
    if not driver.may_open:
        remedy = "join the groups render and video, or give the container both (group_add)"
        return Finding("driver", Verdict.LOOK, f"{found}, but /dev/kfd may not be opened", remedy)
    return Finding("driver", Verdict.OK, found)


def _triton(facts: Facts) -> Finding:
    versions = ", ".join(f"{name} {version or 'not installed'}" for name, version in facts.packages.items())
    if not facts.nodes.any:
        return Finding("triton", Verdict.OK, f"not needed without a GPU ({versions})")
    maker = "nvidia" if facts.nodes.nvidia else "amd"
    if facts.packages["triton"] is not None and maker not in facts.triton_backends:
        remedy = "install the Triton that torch for ROCm brings" if maker == "amd" else "install triton anew"
        found = f"{versions}, which has no backend for {maker}"
        return Finding("triton", Verdict.LOOK, found, remedy)
    if facts.gpu is None:
        return Finding("triton", Verdict.LOOK, versions, facts.gpu_error)
    return Finding("triton", Verdict.OK, f"{versions} on {facts.gpu}")


def _compiler(facts: Facts) -> Finding:
    if facts.compiler is None:
        return Finding("compiler", Verdict.LOOK, "none", facts.compiler_error)
    if facts.nodes.any and not facts.has_c_compiler:
        found = f"{facts.compiler}, but none for C, which Triton needs"
        return Finding("compiler", Verdict.LOOK, found, "install gcc or set CC")
    return Finding("compiler", Verdict.OK, facts.compiler)


def _instruction_sets(facts: Facts) -> Finding:
    found = f"{', '.join(facts.instruction_sets)} on {facts.num_cores} cores of {facts.cpu or 'this CPU'}"
    if facts.instruction_sets == ("portable",):
        remedy = "models compute slowly here: take a machine with AVX2 or NEON dot products"
        return Finding("instructions", Verdict.LOOK, found, remedy)
    return Finding("instructions", Verdict.OK, found)


def _executor(facts: Facts) -> Finding:
    """Say what `--executor auto` would take."""
    if facts.gpu is not None:
        return Finding("executor", Verdict.OK, f"triton, on {facts.gpu}")
    if facts.compiler is not None:
        return Finding("executor", Verdict.OK, f"native, for {facts.instruction_sets[0]}")
    if facts.packages["torch"] is not None:
        remedy = "native is faster: install g++"
        return Finding("executor", Verdict.LOOK, "torch, which is slow", remedy)
    return Finding("executor", Verdict.MISSING, "nothing computes a model here", facts.compiler_error)


def _huge_pages(facts: Facts) -> Finding:
    if facts.huge_pages is None:
        return Finding("huge pages", Verdict.OK, "this system does not say")
    if facts.huge_pages == "never":
        remedy = "memory reads faster in them: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        return Finding("huge pages", Verdict.LOOK, "never", remedy)
    return Finding("huge pages", Verdict.OK, facts.huge_pages)


def _memory(facts: Facts) -> Finding:
    found = f"{facts.free_bytes / MIB:,.0f} MiB free"
    if facts.free_bytes < NEEDED_BYTES:
        remedy = f"a suite with the built-in model needs {NEEDED_BYTES / MIB:,.0f} MiB: free some"
        return Finding("memory", Verdict.MISSING, found, remedy)
    if facts.free_bytes < ROOMY_BYTES:
        remedy = f"KV takes {HOST_FRACTION:.0%} of it: free some, or set --kv-memory, to run more at once"
        return Finding("memory", Verdict.LOOK, found, remedy)
    if facts.gpu_memory is not None:
        free, total = facts.gpu_memory.free_bytes, facts.gpu_memory.total_bytes
        found += f"; {free / MIB:,.0f} of {total / MIB:,.0f} MiB on the GPU"
        if free < ROOMY_BYTES:
            return Finding("memory", Verdict.LOOK, found, "end what else runs on the GPU")
    return Finding("memory", Verdict.OK, found)


def _ports(facts: Facts) -> Finding:
    all_ports = [port for group in facts.ports.values() for port in group]
    if not facts.busy:
        return Finding(
            "ports", Verdict.OK, f"all {len(all_ports)} free, {min(all_ports)} to {max(all_ports)}"
        )
    whose = {port: name for name, group in facts.ports.items() for port in group}
    found = f"{', '.join(f'{port} ({whose[port]})' for port in sorted(facts.busy))} in use"
    if set(facts.busy) == set(all_ports):
        remedy = "a suite runs here, it seems (quire status); another one needs --port-offset N"
        return Finding("ports", Verdict.LOOK, found, remedy)
    return Finding("ports", Verdict.MISSING, found, "end what holds them, or take --port-offset N")


def _clock(facts: Facts) -> Finding:
    ahead = facts.redis.clock_ahead_s
    if ahead is not None and abs(ahead) > CLOCK_LIMIT_S:
        found = f"Redis' clock is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}"
        return Finding("clock", Verdict.LOOK, found, "synchronise both: budgets go by its clock")
    if facts.is_clock_synchronised is None:
        return Finding("clock", Verdict.OK, "this system does not say")
    if not facts.is_clock_synchronised:
        remedy = "run chrony or systemd-timesyncd: budgets by the day and certificates go by the clock"
        return Finding("clock", Verdict.LOOK, "nothing synchronises it", remedy)
    return Finding("clock", Verdict.OK, "synchronised")


def _redis(facts: Facts) -> Finding:
    redis = facts.redis
    if redis.error is not None:
        remedy = "mend REDIS_URL, or unset it to run our own"
        if redis.where == "none":
            remedy = "install valkey-server or redis-server, or set REDIS_URL"
        return Finding("redis", Verdict.MISSING, redis.error, remedy)
    if redis.version is None:
        return Finding("redis", Verdict.OK, f"would be started: {redis.where}")
    found = f"{redis.where} answers, version {redis.version}"
    if redis.policy not in (None, "noeviction"):
        remedy = "quotas could be thrown away: set maxmemory-policy noeviction"
        return Finding("redis", Verdict.LOOK, f"{found}, {redis.policy}", remedy)
    return Finding("redis", Verdict.OK, found)


def _cache(facts: Facts) -> Finding:
    cache = facts.cache
    found = f"{cache.folder}, {cache.free_bytes / MIB:,.0f} MiB free, {_models(len(cache.models))}"
    if not cache.is_writable:
        remedy = "free it, or set QUIRE_CACHE to another folder"
        return Finding("model cache", Verdict.MISSING, f"{cache.folder} cannot be written", remedy)
    damaged = {name: why for name, why in cache.models.items() if why is not None}
    if damaged:
        found = f"{', '.join(damaged)} damaged"
        return Finding("model cache", Verdict.MISSING, found, next(iter(damaged.values())))
    if cache.free_bytes < CACHE_BYTES:
        remedy = "models, packed weights and compiled code go there: free some, or set QUIRE_CACHE"
        return Finding("model cache", Verdict.LOOK, found, remedy)
    return Finding("model cache", Verdict.OK, found)


def _models(count: int) -> str:
    if count == 0:
        return "no model yet (the first start fetches one)"
    return f"{count} model{'s' if count > 1 else ''}"
