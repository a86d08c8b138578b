"""What a caller gets while its band has degraded, and how it is told."""

import dataclasses
from collections.abc import AsyncIterator

import pytest

from gateway.core.auth import LOCAL_TENANT
from protos.scheduler.v1 import scheduler_pb2
from protos.types.v1 import types_pb2
from services.domain.degradation import Degradation
from tests.fakes import gateway_rig
from tests.fakes.gateway_rig import ACME, ACME_KEY, Answer, Rig, generate
from tests.fakes.worker_server import says

POLICY = Degradation(cap_output_tokens=12, cut_prompt_tokens=8, smaller_models={"tiny": "absent"})
ANSWER = "It is so. And more of it follows. And more."


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    acme = dataclasses.replace(ACME, degradation=POLICY)
    monkeypatch.setattr(gateway_rig, "TENANTS", (LOCAL_TENANT, acme))
    async with gateway_rig.gateway_rig() as started:
        started.worker.script = says(ANSWER)
        yield started


async def climb(rig: Rig, step: "types_pb2.DegradationStep", band: "types_pb2.Band") -> None:
    """Let the scheduler say that a band stands on `step`."""
    rig.scheduler.models[0].steps.append(scheduler_pb2.BandStep(band=band, step=step))
    rig.scheduler.send_models()
    await rig.until(lambda: rig.parts.generate.models.find("tiny").state.steps)


def told(answer: Answer) -> list[tuple[int, str, str]]:
    """Return what an answer says it is less of, at its start as in its receipt."""
    (started,) = answer.of("started")
    assert list(started.degraded) == list(answer.receipt.degraded)
    return [(one.step, one.asked, one.served) for one in started.degraded]


async def test_an_answer_ends_with_the_sentence_that_reaches_its_cap(rig: Rig) -> None:
    await climb(rig, types_pb2.DEGRADATION_STEP_CAP_OUTPUT, types_pb2.BAND_STANDARD)
    answer = await generate(rig, metadata=ACME_KEY, max_output_tokens=100)
    assert answer.text() == "It is so. And more of it follows."
    (finished,) = answer.of("finished")
    assert finished.reason == types_pb2.FINISH_REASON_LENGTH
    assert told(answer) == [(types_pb2.DEGRADATION_STEP_CAP_OUTPUT, "100", "12")]
    assert rig.worker.submits[0].max_output_tokens == 76, "the cap and what a sentence may take to end"
    await rig.settled()
    assert rig.metric("quire_degraded_total", step="cap_output") == 1


async def test_a_long_prompt_is_cut_from_the_left_a_step_later(rig: Rig) -> None:
    await climb(rig, types_pb2.DEGRADATION_STEP_CUT_CONTEXT, types_pb2.BAND_STANDARD)
    answer = await generate(rig, metadata=ACME_KEY, prompt="0123456789abcdef", max_output_tokens=5)
    assert told(answer) == [(types_pb2.DEGRADATION_STEP_CUT_CONTEXT, "17", "8")]
    assert bytes(rig.worker.submits[0].prompt_ids[1:]) == b"9abcdef"
    assert told(await generate(rig, metadata=ACME_KEY, prompt="short", max_output_tokens=5)) == []


async def test_who_did_not_agree_to_get_less_gets_all(rig: Rig) -> None:
    await climb(rig, types_pb2.DEGRADATION_STEP_SMALLER_MODEL, types_pb2.BAND_STANDARD)
    answer = await generate(rig, prompt="0123456789abcdef", max_output_tokens=100)
    assert (answer.text(), told(answer)) == (ANSWER, [])


async def test_a_band_that_has_not_degraded_gets_all(rig: Rig) -> None:
    await climb(rig, types_pb2.DEGRADATION_STEP_SMALLER_MODEL, types_pb2.BAND_BATCH)
    answer = await generate(rig, metadata=ACME_KEY, prompt="0123456789abcdef", max_output_tokens=100)
    assert (answer.text(), told(answer)) == (ANSWER, [])
    answer = await generate(rig, metadata=ACME_KEY, max_output_tokens=100, band=types_pb2.BAND_BATCH)
    assert answer.text() != ANSWER, "the control"
