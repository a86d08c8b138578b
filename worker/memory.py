"""Decides how many KV pages a worker gets, and says by what arithmetic.

Knows the machine's free memory and bytes per page; knows nothing of models. What a GPU has room for is
measured in `worker.device_memory`.
"""

from dataclasses import dataclass
from pathlib import Path

from services.chassis.fatal import FatalError
from services.domain.capacity import pages_for

MIB = 1 << 20
HOST_FRACTION = 0.25
"""Share of a host's free memory that a KV pool takes by itself: other processes live there too."""


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


@dataclass(frozen=True, slots=True)
class KvRoom:
    """What a KV pool may take."""

    num_bytes: int
    """What it takes where nobody says how much."""
    most_bytes: int
    """What it may be told to take."""
    arithmetic: str
    """Where `num_bytes` comes from."""


def host_room(free_bytes: int, fraction: float | None) -> KvRoom:
    """Return a fraction of the host's free memory (8 GiB free and 0.25: 2 GiB)."""
    share = HOST_FRACTION if fraction is None else fraction
    return KvRoom(int(free_bytes * share), free_bytes, f"{share:g} of {free_bytes / MIB:,.0f} MiB free")


def size_pool(need: PoolNeed, *, kv_bytes: int | None, room: KvRoom) -> PoolSize:
    """Return the pages for `kv_bytes`, or for what there is room for when it is None.

    Worked number: room for 2 GiB and pages of 720 KiB give 2,912 pages, unless all sequences at full context
    need fewer: nothing could use more than that at once.

    Raises:
        TooLittleMemory: Not even one page fits, or more is asked for than is free.
    """
    if kv_bytes is None:
        most = need.max_sequences * pages_for(need.max_context_tokens, need.page_size)
        num_pages = min(room.num_bytes // need.page_bytes, most)
        source = f"{room.arithmetic}, at most {most} pages for all sequences"
    else:
        if kv_bytes > room.most_bytes:
            raise TooLittleMemory(
                f"--kv-memory asks for {kv_bytes / MIB:,.0f} MiB, "
                f"{room.most_bytes / MIB:,.0f} MiB are free for it: ask for less"
            )
        num_pages = kv_bytes // need.page_bytes
        source = f"{kv_bytes / MIB:,.0f} MiB given" if kv_bytes >= MIB else f"{kv_bytes:,} bytes given"
    if num_pages < 1:
        raise TooLittleMemory(
            f"no KV page of {need.page_bytes:,} bytes fits into {source}: free memory or raise --kv-memory"
        )
    per_page = f"{need.page_bytes:,} bytes per page of {need.page_size} tokens"
    return PoolSize(num_pages, f"{source} / {per_page} = {num_pages} pages")


def check_fits(
    weight_bytes: int, need: PoolNeed, *, kv_bytes: int | None, free_bytes: int, fraction: float | None
) -> None:
    """Refuse, before anything long is begun, a model that cannot fit or a pool that cannot beside it.

    Args:
        weight_bytes: What loading will take of the `free_bytes` that are free before it.

    Raises:
        TooLittleMemory: The weights alone need more, or what they leave does not hold the pool.
    """
    check_weights_fit(weight_bytes, free_bytes)
    size_pool(need, kv_bytes=kv_bytes, room=host_room(free_bytes - weight_bytes, fraction))


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
