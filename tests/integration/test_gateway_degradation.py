"""What a caller gets while its band has degraded, and how it is told."""

import dataclasses
from collections.abc import AsyncIterator

import grpc
import pytest

from gateway.core.auth import LOCAL_TENANT
from gateway.core.ending import Failed
from gateway.core.request import Caller
from protos.scheduler.v1 import scheduler_pb2
from protos.types.v1 import types_pb2
from services.domain.degradation import Degradation, Degraded, Step, degraded_of
from services.domain.errors import ErrorDetail, Overloaded
from services.domain.ids import RequestId
from services.domain.limits import Budget, Limits
from tests.fakes import gateway_rig
from tests.fakes.gateway_rig import ACME, ACME_KEY, Answer, Rig, a_request, generate
from tests.fakes.http_rig import KEY, HttpRig, http_rig
from tests.fakes.quota_memory import MemoryQuota
from tests.fakes.worker_server import says

POLICY = Degradation(cap_output_tokens=12, cut_prompt_tokens=8, smaller_models={"tiny": "absent"})
ANSWER = "It is so. And more of it follows. And more."


@pytest.fixture
async def http(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpRig]:
    acme = dataclasses.replace(ACME, degradation=POLICY)
    monkeypatch.setattr(gateway_rig, "TENANTS", (LOCAL_TENANT, acme))
    async with http_rig() as started:
        started.web.headers["authorization"] = f"Bearer {KEY}"
        started.rig.worker.script = says(ANSWER)
        yield started


@pytest.fixture
def rig(http: HttpRig) -> Rig:
    return http.rig


async def climb(rig: Rig, step: "types_pb2.DegradationStep", band: "types_pb2.Band") -> None:
    """Let the scheduler say that a band stands on `step`."""
    rig.scheduler.models[0].steps.append(scheduler_pb2.BandStep(band=band, step=step))
    rig.scheduler.send_models()
    await rig.until(lambda: rig.parts.generate.models.find("tiny").state.steps)


async def climb_alone(rig: Rig, tenant: str, step: "types_pb2.DegradationStep") -> None:
    """Let the scheduler say that a tenant stands on `step` by itself."""
    rig.scheduler.send_step(tenant, types_pb2.BAND_STANDARD, step)
    link = rig.parts.scheduler
    await rig.until(lambda: bool(link.tenant_steps) is bool(step))


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
    assert rig.worker.submits[0].max_output_tokens == 100, "where nothing ends it goes on"
    await rig.settled()
    assert rig.metric("quire_degraded_total", step="cap_output", asked="128", served="16") == 1


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


async def test_who_climbs_alone_gets_less_alone_until_it_has_come_down(rig: Rig) -> None:
    await climb_alone(rig, ACME.id, types_pb2.DEGRADATION_STEP_CUT_CONTEXT)
    asked = {"prompt": "0123456789abcdef", "max_output_tokens": 5}
    felt = [(types_pb2.DEGRADATION_STEP_CUT_CONTEXT, "17", "8")]
    assert told(await generate(rig, metadata=ACME_KEY, **asked)) == felt
    other_band = await generate(rig, metadata=ACME_KEY, band=types_pb2.BAND_BATCH, **asked)
    assert told(other_band) == [], "the control: it has not climbed there"
    await climb_alone(rig, ACME.id, types_pb2.DEGRADATION_STEP_UNSPECIFIED)
    assert told(await generate(rig, metadata=ACME_KEY, **asked)) == []


async def test_a_neighbour_that_climbs_alone_takes_nothing_from_others(rig: Rig) -> None:
    await climb_alone(rig, LOCAL_TENANT.id, types_pb2.DEGRADATION_STEP_SMALLER_MODEL)
    answer = await generate(rig, metadata=ACME_KEY, prompt="0123456789abcdef", max_output_tokens=100)
    assert (answer.text(), told(answer)) == (ANSWER, [])


async def test_a_scheduler_that_begins_anew_says_who_has_climbed_anew(rig: Rig) -> None:
    await climb_alone(rig, ACME.id, types_pb2.DEGRADATION_STEP_CUT_CONTEXT)
    await rig.scheduler.stop()
    rig.scheduler.term += 1
    await rig.scheduler.start()
    await rig.until(lambda: rig.parts.scheduler.is_connected and not rig.parts.scheduler.tenant_steps)
    assert told(await generate(rig, metadata=ACME_KEY, prompt="0123456789abcdef", max_output_tokens=5)) == []


async def test_arrivals_that_are_not_gathered_say_so(rig: Rig) -> None:
    rig.scheduler.models[0].batch_wait_ms = 20
    await climb(rig, types_pb2.DEGRADATION_STEP_CAP_OUTPUT, types_pb2.BAND_STANDARD)
    felt = [(types_pb2.DEGRADATION_STEP_BATCH_WAIT, "20", "0")]
    assert told(await generate(rig, metadata=ACME_KEY, max_output_tokens=5)) == felt
    assert told(await generate(rig, max_output_tokens=5)) == [], "the control: of a band that has not climbed"


@pytest.mark.parametrize("stream", [False, True])
async def test_both_doors_say_before_the_first_token_what_is_less(http: HttpRig, stream: bool) -> None:
    rig, value = http.rig, "cap_output 12/100; cut_context 8/17"
    before = await http.post(prompt="0123456789abcdef", max_tokens=100, stream=stream)
    assert "x-quire-degraded" not in before.headers, "the control"
    await climb(rig, types_pb2.DEGRADATION_STEP_CUT_CONTEXT, types_pb2.BAND_STANDARD)
    answer = await http.post(prompt="0123456789abcdef", max_tokens=100, stream=stream)
    assert answer.headers["x-quire-degraded"] == value
    assert answer.headers["x-ratelimit-limit-tokens"]
    request = a_request(prompt="0123456789abcdef", max_output_tokens=100)
    call = rig.stub.Generate(request, metadata=ACME_KEY, timeout=60)
    assert [message async for message in call]
    assert dict(await call.initial_metadata())["x-quire-degraded"] == value


@pytest.mark.parametrize("degraded", [Degraded(Step.THROTTLE, "3", "1"), Degraded(Step.REFUSE, "1", "0")])
async def test_what_the_ladder_refuses_is_told_counted_and_kept(http: HttpRig, degraded: Degraded) -> None:
    rig, step = http.rig, degraded.step.name.lower()
    rig.scheduler.rejects = Overloaded(
        "m is overloaded", ErrorDetail(retry_after_s=5.0, quota="degradation/m", metadata=degraded.metadata)
    )
    answer = await http.post(max_tokens=5, stream=True)
    assert answer.status_code == 429
    assert answer.headers["x-quire-degraded"] == f"{step} {degraded.served}/{degraded.asked}"
    assert answer.headers["retry-after"] == "5"
    assert answer.headers["x-ratelimit-limit-tokens"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(rig, metadata=ACME_KEY)
    trailers = dict(caught.value.trailing_metadata() or ())
    assert trailers["x-quire-degraded"] == f"{step} {degraded.served}/{degraded.asked}"
    await rig.settled()
    served = {"asked": str(1 << (int(degraded.asked) - 1).bit_length()), "served": degraded.served}
    assert rig.metric("quire_degraded_total", step=step, **served) == 2
    await kept(rig, answer.headers["x-request-id"], degraded)


async def kept(rig: Rig, request_id: str, degraded: Degraded) -> None:
    """Whoever asks later what became of a refused request is told the step."""
    failed = await rig.parts.queries.request(Caller(tenant=ACME.id, key_id=""), RequestId(request_id))
    assert isinstance(failed, Failed)
    assert degraded_of(failed.metadata) == degraded


async def test_a_spent_soft_budget_degrades_whoever_agreed_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers of 43 tokens to prompts of 6, until 100 of the day are spent: then they are capped."""
    limits = Limits(daily=Budget(tokens=100, hard=False))
    policy = Degradation(cap_output_tokens=12, budget_at=1.0)
    agreed = dataclasses.replace(ACME, limits=limits, degradation=policy)
    local = dataclasses.replace(LOCAL_TENANT, limits=limits)
    monkeypatch.setattr(gateway_rig, "TENANTS", (local, agreed))
    noon = 1.5 * 86_400  # It stays noon: no day ends while this runs.
    async with gateway_rig.gateway_rig(quota=MemoryQuota(lambda: noon)) as rig:
        rig.worker.script = says(ANSWER)
        answers = []
        for _ in range(5):
            answers.append(await generate(rig, metadata=ACME_KEY, max_output_tokens=100))
            await rig.settled()
        felt = [(types_pb2.DEGRADATION_STEP_CAP_OUTPUT, "100", "12")]
        assert [told(one) for one in answers[:3]] == [[], [], []], "98 are spent before the third"
        assert told(answers[4]) == felt, "the fourth told this gateway of 147"
        warned = rig.metric("quire_budget_warnings_total", budget="daily_budget", hard="false")
        assert warned == 3, "from the third on, with four fifths spent"
        assert rig.scheduler.acquired[-1].budget_step == types_pb2.DEGRADATION_STEP_SMALLER_MODEL
        assert rig.metric("quire_budget_degraded_tenants", step="cap_output") == 0, "far over: all the way"
        assert rig.metric("quire_budget_degraded_tenants", step="smaller_model") == 1
        for _ in range(5):
            control = await generate(rig, max_output_tokens=100)
            await rig.settled()
            assert (control.text(), told(control)) == (ANSWER, [])
