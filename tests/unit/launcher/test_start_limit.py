"""How long a suite may take to be up: as long as a process counts on in its log."""

import asyncio
from pathlib import Path

import pytest
from rich.console import Console

from services.launcher import supervisor
from services.launcher.board import PlainBoard
from services.launcher.supervisor import StartFailed, Supervisor
from services.launcher.topology import Process


@pytest.mark.parametrize("counts", [[None], [1, 1], [1, 2, 3, 3]])
async def test_a_start_goes_on_while_a_process_counts(
    counts: list[int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is started here: what would be up never is, and its log says what the test says."""
    seen = iter(counts)
    monkeypatch.setattr(supervisor, "START_LIMIT_S", 0.001)
    monkeypatch.setattr(supervisor, "how_far", lambda log: next(seen))
    worker = Process(name="worker-0", command=("true",), port=1)
    suite = Supervisor([worker], tmp_path, PlainBoard(Console(quiet=True)))
    with pytest.raises(StartFailed, match=r"not up after .* worker-0"):
        await suite._say_when_up(asyncio.Event())
    assert list(seen) == [], "every period was granted, and none after the count stood still"
