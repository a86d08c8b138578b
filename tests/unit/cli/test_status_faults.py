"""`quire status` names workers that get no requests, and prompts that workers died with."""

import io

from rich.console import Console

from services.commands.status import Status, show
from services.rpc.fleet_status import PlacedWorker, QuarantinedPrompt, QueueStatus


def worker(name: str, breaker: str, reason: str) -> PlacedWorker:
    return PlacedWorker(
        name=name,
        address="127.0.0.1:1",
        model="m",
        draining=False,
        placed=0,
        granted=0,
        last_seen_ms=0,
        breaker=breaker,
        breaker_reason=reason,
        breaker_retry_ms=12_000,
    )


def test_status_shows_open_breakers_with_their_reason_and_quarantined_prompts() -> None:
    queue = QueueStatus(
        term=1,
        waiting=0,
        waiting_tokens=0,
        oldest_wait_ms=0,
        placed_total=0,
        rejected_total=0,
        num_gateways=1,
        workers=(worker("worker-0", "open", "errors"), worker("worker-1", "closed", "errors")),
        quarantine=(QuarantinedPrompt(digest="ab" * 16, num_workers=2, left_s=60.0),),
        degraded=(),
    )
    out = io.StringIO()
    status = Status(up={}, queue=queue, index=None, workers=(None, None))
    Console(file=out, width=200).print(show(status))
    assert "worker-0 (breaker open: errors, tries again in 12 s)" in out.getvalue()
    assert out.getvalue().count("breaker") == 1
    assert f"{'ab' * 16}: 2 workers died with this prompt, refused for 60 s more" in out.getvalue()


def test_where_nobody_answers_status_says_how_to_find_a_suite() -> None:
    out = io.StringIO()
    down = Status(up={"gateway": False, "scheduler": False}, queue=None, index=None, workers=())
    Console(file=out, width=200).print(show(down))
    assert "nobody answers: start a suite with `quire up`" in out.getvalue()
    assert "--port-offset" in out.getvalue()
