"""What people see of processes that come up: on a terminal and in a pipe."""

import asyncio
import io
from pathlib import Path

from rich.console import Console

from services.launcher.board import LiveBoard, PlainBoard
from services.launcher.supervisor import Child, State
from services.launcher.topology import Process


def child(folder: Path, name: str, port: int, **waits: tuple[str, ...]) -> Child:
    spec = Process(name=name, command=(), port=port, **waits)  # type: ignore[arg-type]
    return Child(spec, folder / f"{name}.log", asyncio.Event())


def family(folder: Path) -> tuple[Child, Child, Child]:
    return (
        child(folder, "redis", 1),
        child(folder, "kvmanager", 2, needs=("redis",)),
        child(folder, "worker-0", 3, waits_for=("kvmanager",)),
    )


def test_in_a_pipe_each_change_is_a_line_that_says_what_is_waited_for(tmp_path: Path) -> None:
    out = io.StringIO()
    board = PlainBoard(Console(file=out, width=200))
    redis, kvmanager, worker = everybody = family(tmp_path)
    for change in (
        lambda: (redis.become(State.STARTING), worker.become(State.STARTING)),
        lambda: redis.become(State.UP),
        lambda: kvmanager.become(State.STARTING),
        lambda: kvmanager.become(State.UP),
        lambda: worker.become(State.UP),
    ):
        change()
        board.changed(everybody)
        board.changed(everybody)
    assert [line.partition("] ")[2] for line in out.getvalue().splitlines()] == [
        "redis: starting",
        "kvmanager: waits for redis",
        "worker-0: starting, waits for kvmanager",
        "redis: up on port 1",
        "kvmanager: starting",
        "kvmanager: up on port 2",
        "worker-0: starting",
        "worker-0: up on port 3",
    ]


def test_on_a_terminal_the_table_shows_what_is_waited_for_and_what_a_start_does(tmp_path: Path) -> None:
    out = io.StringIO()
    board = LiveBoard(Console(file=out, width=100, force_terminal=True, color_system=None))
    redis, kvmanager, worker = everybody = family(tmp_path)
    redis.become(State.STARTING)
    worker.log.write_text('{"event": "compiled_object", "done": 3, "of": 20}\n')
    board.changed(everybody)
    assert "waits for redis" in out.getvalue()
    redis.become(State.UP)
    kvmanager.become(State.UP)
    worker.become(State.STARTING)
    board.changed(everybody)
    board.settle()
    last = out.getvalue()
    assert "up on port 1" in last
    assert "compiled object 3 of 20" in last
