"""Limits in time of a stream over real gRPC, and its signs of life until the first token."""

import pytest

from protos.types.v1 import types_pb2
from services.domain.errors import LimitExpired
from tests.fakes.gateway_rig import Rig, a_request, failure_of
from tests.fakes.worker_server import endless


@pytest.mark.parametrize(
    ("limits", "name"),
    [({"queue_ms": 1000}, "queue"), ({"first_token_ms": 1000}, "first token"), ({"total_ms": 1000}, "total")],
)
async def test_limits_hold_while_the_request_waits(rig: Rig, limits: dict[str, int], name: str) -> None:
    rig.scheduler.holds = True
    error = await failure_of(rig, limits=types_pb2.Limits(**limits))
    assert type(error) is LimitExpired
    assert error.detail.metadata["limit"] == name
    assert error.detail.usage is not None
    assert error.detail.usage.prompt_tokens == 6
    await rig.until(lambda: len(rig.scheduler.abandoned) == 1)
    assert rig.worker.submits == []


async def test_the_queue_limit_ends_with_the_queue_and_the_total_limit_tells_usage(rig: Rig) -> None:
    rig.worker.script, rig.worker.step_s = endless, 0.005
    limits = types_pb2.Limits(queue_ms=1000, first_token_ms=1500, total_ms=2000)
    error = await failure_of(rig, limits=limits, max_output_tokens=2000)
    assert (type(error), error.detail.metadata["limit"]) == (LimitExpired, "total")
    assert error.detail.usage is not None
    assert error.detail.usage.output_tokens > 5
    await rig.until(lambda: rig.worker.cancelled)


async def test_the_callers_deadline_comes_back_with_usage(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.core.deadlines.DEADLINE_MARGIN_S", 28.0)
    monkeypatch.setattr("gateway.core.deadlines.DEADLINE_MARGIN_SHARE", 1.0)
    rig.worker.script, rig.worker.step_s = endless, 0.005
    error = await failure_of(rig, deadline_s=30, max_output_tokens=2000)
    assert type(error) is LimitExpired
    assert error.detail.usage is not None
    assert error.detail.usage.output_tokens > 5


@pytest.mark.failure("B082")
async def test_there_are_signs_of_life_until_the_first_token(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.core.deadlines.HEARTBEAT_S", 0.03)
    rig.scheduler.holds = True
    call = rig.stub.Generate(a_request())
    seen: list[str] = []
    async for message in call:
        seen.append(str(message.WhichOneof("event")))
        if seen.count("still_waiting") >= 3 and rig.scheduler.holds and rig.scheduler.acquired:
            rig.scheduler.holds = False
            rig.scheduler.queue(rig.scheduler.acquired[0], 4, 1500)
        if seen[-1] == "queued":
            assert (message.queued.position, message.queued.expected_wait_ms) == (4, 1500)
            rig.scheduler.place_all()
    assert seen.index("queued") < seen.index("started")
    assert "still_waiting" not in seen[seen.index("delta") :]
