"""Decides how many KV pages a worker gets, and says by what arithmetic.

Knows the machine's free memory and bytes per page; knows nothing of models or devices.
"""

from dataclasses import dataclass
from pathlib import Path

from services.chassis.fatal import FatalError
from services.domain.capacity import pages_for

MIB = 1 << 20


class TooLittleMemory(FatalError):
    """The model or its smallest useful KV pool does not fit; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNeed:
    """What bounds a pool from both sides."""

    page_bytes: int
    page_size: int
    max_context_tokens: int
    max_sequences: int


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How many pages, and why so many."""

    num_pages: int
    arithmetic: str


def size_pool(need: PoolNeed, *, kv_bytes: int | None, free_bytes: int, fraction: float) -> PoolSize:
    """Return the pages for `kv_bytes`, or for a fraction of free memory when it is None.

    Worked number: 8 GiB free, a fraction of 0.25 and pages of 720 KiB give 2,912 pages, unless all sequences
    at full context need fewer: nothing could use more than that at once.

    Raises:
        TooLittleMemory: Not even one page fits, or more is asked for than is free.
    """
    if kv_bytes is None:
        budget = int(free_bytes * fraction)
        most = need.max_sequences * pages_for(need.max_context_tokens, need.page_size)
        num_pages = min(budget // need.page_bytes, most)
        source = f"{fraction:g} of {free_bytes / MIB:,.0f} MiB free, at most {most} pages for all sequences"
    else:
        if kv_bytes > free_bytes:
            raise TooLittleMemory(
                f"--kv-memory asks for {kv_bytes / MIB:,.0f} MiB, "
                f"{free_bytes / MIB:,.0f} MiB are free: ask for less"
            )
        num_pages = kv_bytes // need.page_bytes
        source = f"{kv_bytes / MIB:,.0f} MiB given"
    if num_pages < 1:
        raise TooLittleMemory(
            f"no KV page of {need.page_bytes:,} bytes fits into {source}: free memory or raise --kv-memory"
        )
    per_page = f"{need.page_bytes:,} bytes per page of {need.page_size} tokens"
    return PoolSize(num_pages, f"{source} / {per_page} = {num_pages} pages")


def check_weights_fit(weight_bytes: int, free_bytes: int) -> None:
    """Refuse, before anything is loaded, a model that cannot fit.

    Raises:
        TooLittleMemory: The weights alone need more than is free.
    """
    if weight_bytes > free_bytes:
        raise TooLittleMemory(
            f"the weights need about {weight_bytes / MIB:,.0f} MiB, {free_bytes / MIB:,.0f} MiB are free: "
            "free memory or choose a smaller model"
        )


def free_memory_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return what this process may still allocate: the machine's available memory or its container's rest."""
    free = 1 << 62
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if limit.exists() and used.exists():
        text = limit.read_text().strip()
        if text != "max":
            free = min(free, max(0, int(text) - int(used.read_text())))
    return free
