"""Sizing the KV pool."""

from pathlib import Path

import pytest

from worker.memory import (
    MIB,
    PoolNeed,
    TooLittleMemory,
    check_weights_fit,
    free_memory_bytes,
    host_room,
    size_pool,
)

NEED = PoolNeed(page_bytes=720 * 1024, page_size=16, max_context_tokens=8192, max_sequences=32)


def test_the_worked_number() -> None:
    size = size_pool(NEED, kv_bytes=None, room=host_room(8192 * MIB, None))
    assert size.num_pages == 2912
    assert size.arithmetic == (
        "0.25 of 8,192 MiB free, at most 16384 pages for all sequences"
        " / 737,280 bytes per page of 16 tokens = 2912 pages"
    )


def test_no_more_than_all_sequences_can_use() -> None:
    size = size_pool(NEED, kv_bytes=None, room=host_room(1 << 50, None))
    assert size.num_pages == 32 * 8192 // 16


def test_given_bytes_are_taken_as_they_are() -> None:
    assert size_pool(NEED, kv_bytes=7 * 720 * 1024, room=host_room(1 << 40, None)).num_pages == 7


@pytest.mark.parametrize(("kv_bytes", "free"), [(1000, 1 << 40), (1 << 40, 1 << 30), (None, 1 << 20)])
def test_too_little_memory_is_said_in_one_line(kv_bytes: int | None, free: int) -> None:
    with pytest.raises(TooLittleMemory) as raised:
        size_pool(NEED, kv_bytes=kv_bytes, room=host_room(free, None))
    assert "--kv-memory" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_weights_that_cannot_fit_are_refused_before_loading() -> None:
    check_weights_fit(100, 100)
    with pytest.raises(TooLittleMemory, match="smaller model"):
        check_weights_fit(101, 100)


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable:   800 kB\n")
    assert free_memory_bytes(tmp_path, tmp_path) == 800 * 1024
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory_bytes(tmp_path, tmp_path) == 800 * 1024
    (tmp_path / "memory.max").write_text("5000\n")
    assert free_memory_bytes(tmp_path, tmp_path) == 4000
