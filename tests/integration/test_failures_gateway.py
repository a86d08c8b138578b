"""Known failures of gateways: dropped parameters, faults in making text, busy tokenising."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from protos.gateway.v1 import gateway_pb2 as pb
from protos.types.v1 import types_pb2
from services.chassis.errors import from_rpc_error
from services.domain.errors import BadRow, Code
from services.rpc import convert
from tests.fakes.byte_tokenizer import EOS, ByteTokenizer
from tests.fakes.gateway_rig import (
    ACME,
    ACME_KEY,
    Rig,
    a_request,
    failure_of,
    generate,
    use_by,
)
from tests.fakes.worker_server import endless, says


@pytest.mark.failure("B132")
async def test_a_tenant_is_charged_what_its_answers_say_and_nothing_else(rig: Rig) -> None:
    rig.worker.script, rig.worker.step_s = says("some text"), 0.001
    said = 0
    for number in range(30):
        fields = {"prompt": "x" * (1 + number), "n": 1 + number % 3, "max_output_tokens": 1 + number % 11}
        usage = (await generate(rig, metadata=ACME_KEY, **fields)).receipt.usage
        said += usage.prompt_tokens + usage.output_tokens
        rig.worker.refuses = BadRow("a row of the step is not finite") if number % 10 == 9 else None
        await failure_of(rig, metadata=ACME_KEY, **({} if rig.worker.refuses else {"n": 99}))
        rig.worker.refuses = None
    await rig.settled()
    use = await use_by(rig.quota, ACME)
    assert (use.day_spent, use.day_charged, use.month_spent) == (said, said, said)


@pytest.mark.failure("B075")
async def test_three_choices_with_three_ends_say_each_once_and_last(rig: Rig) -> None:
    texts = [[*b"by itself", EOS, *b"never"], list(b"by END never"), list(b"by length")]
    rig.worker.script, rig.worker.step_s = lambda submit, choice: texts[choice], 0.001
    answer = await generate(rig, n=3, stop=["END"])
    reasons = {finished.choice: finished.reason for finished in answer.of("finished")}
    assert reasons == {
        0: types_pb2.FINISH_REASON_STOP,
        1: types_pb2.FINISH_REASON_STOP_STRING,
        2: types_pb2.FINISH_REASON_LENGTH,
    }
    assert [answer.text(choice) for choice in range(3)] == ["by itself", "by ", "by length"]
    ended: set[int] = set()
    for message in answer.messages:
        if message.WhichOneof("event") == "finished":
            assert message.finished.choice not in ended
            ended.add(message.finished.choice)
        elif message.WhichOneof("event") == "delta":
            assert message.delta.choice not in ended, "no text after a choice's end"


@pytest.mark.failure("B075")
async def test_a_full_context_ends_by_length(rig: Rig) -> None:
    rig.worker.script = endless
    answer = await generate(rig, prompt="x" * 2000)
    assert answer.of("finished")[0].reason == types_pb2.FINISH_REASON_LENGTH
    assert answer.receipt.usage.prompt_tokens + answer.receipt.usage.output_tokens <= 2048


async def read_to_the_end(call: Any) -> tuple[set[str], grpc.aio.AioRpcError]:
    """Read a stream that fails; return the kinds of its events and its status."""
    kinds: set[str] = set()
    try:
        async for message in call:
            kinds.add(message.WhichOneof("event"))
    except grpc.aio.AioRpcError as error:
        return kinds, error
    raise AssertionError("the stream ended well")


@pytest.mark.failure("B076")
async def test_a_fault_in_making_text_is_an_error_and_never_an_end(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    bytes_of = ByteTokenizer.token_bytes

    def broken(self: ByteTokenizer, token_id: int) -> bytes:
        if token_id == ord("!"):
            raise KeyError("kanarienvogel")
        return bytes_of(self, token_id)

    monkeypatch.setattr(ByteTokenizer, "token_bytes", broken)
    rig.worker.script, rig.worker.step_s = says("some text! and more" + "x" * 900), 0.001
    call = rig.stub.Generate(a_request(max_output_tokens=2000), metadata=ACME_KEY)
    kinds, status = await read_to_the_end(call)
    error = from_rpc_error(status)
    assert error.code is Code.INTERNAL
    assert "kanarienvogel" not in error.message
    assert not kinds & {"finished", "receipt"}
    await rig.until(lambda: rig.worker.cancelled)
    await rig.settled()
    assert rig.worker.running == {}
    assert (await use_by(rig.quota, ACME)).num_leases == 0
    rig.worker.script = says("well")
    assert (await generate(rig)).text() == "well"


OTHER_SAMPLING: dict[str, Any] = {
    "temperature": 0.25,
    "top_p": 0.5,
    "top_k": 7,
    "min_p": 0.125,
    "repetition_penalty": 1.5,
    "presence_penalty": -1.5,
    "frequency_penalty": 1.25,
    "logit_bias": {5: -50.0},
    "seed": 2**64 - 1,
}


@pytest.mark.failure("B095")
async def test_every_sampling_option_of_the_contract_reaches_the_worker(rig: Rig) -> None:
    assert OTHER_SAMPLING.keys() == {field.name for field in pb.SamplingOptions.DESCRIPTOR.fields}
    await generate(rig, sampling=pb.SamplingOptions(seed=3))
    plain = convert.sampling_from_pb(rig.worker.submits[-1].sampling)
    for name, value in OTHER_SAMPLING.items():
        await generate(rig, sampling=pb.SamplingOptions(**({"seed": 3} | {name: value})))
        given = convert.sampling_from_pb(rig.worker.submits[-1].sampling)
        changed = {each for each in given.__slots__ if getattr(given, each) != getattr(plain, each)}
        assert changed == {name}
        assert getattr(given, name) == value


EFFECTS: dict[str, tuple[dict[str, Any], Callable[[Rig, Any], object]]] = {
    "n": ({"n": 2}, lambda rig, answer: len(answer.of("finished")) == 2),
    "max_output_tokens": ({"max_output_tokens": 3}, lambda rig, answer: answer.text() == "hel"),
    "min_output_tokens": (
        {"min_output_tokens": 2},
        lambda rig, answer: rig.worker.submits[-1].min_output_tokens == 2,
    ),
    "stop": ({"stop": ["el"]}, lambda rig, answer: answer.text() == "h"),
    "stop_token_ids": ({"stop_token_ids": [101]}, lambda rig, answer: answer.text() == "h"),
    "ignore_eos": (
        {"ignore_eos": True},
        lambda rig, answer: EOS not in rig.worker.submits[-1].stop_token_ids,
    ),
    "include_stop": ({"stop": ["el"], "include_stop": True}, lambda rig, answer: answer.text() == "hel"),
    "logprobs": (
        {"logprobs": 0},
        lambda rig, answer: rig.worker.submits[-1].sampling.HasField("num_logprobs"),
    ),
    "return_token_ids": (
        {"return_token_ids": True},
        lambda rig, answer: [i for d in answer.of("delta") for i in d.token_ids] == list(b"hello"),
    ),
    "band": (
        {"band": types_pb2.BAND_BATCH},
        lambda rig, answer: rig.scheduler.acquired[-1].band == types_pb2.BAND_BATCH,
    ),
    "band_name": (
        {"band_name": "batch"},
        lambda rig, answer: rig.scheduler.acquired[-1].band == types_pb2.BAND_BATCH,
    ),
    "request_class": (
        {"request_class": types_pb2.REQUEST_CLASS_LONG},
        lambda rig, answer: rig.scheduler.acquired[-1].request_class == types_pb2.REQUEST_CLASS_LONG,
    ),
    "limits": (
        {"limits": types_pb2.Limits(queue_ms=30_000)},
        lambda rig, answer: rig.scheduler.acquired[-1].limits.HasField("queue_ms"),
    ),
    "long_prompt": (
        {"prompt": "x" * 2000, "max_output_tokens": 999, "long_prompt": pb.LONG_PROMPT_CUT_LEFT},
        lambda rig, answer: answer.of("started")[0].cut_tokens > 0,
    ),
    "client_label": ({"client_label": "mine"}, lambda rig, answer: answer.receipt.client_label == "mine"),
    "cache_opt_out": ({"cache_opt_out": True}, lambda rig, answer: rig.worker.submits[-1].cache_opt_out),
    "echo": ({"echo": True}, lambda rig, answer: answer.of("echo")),
    "cache_salt": ({"cache_salt": "s"}, lambda rig, answer: rig.scheduler.acquired[-1].own_salt),
}
TESTED_ELSEWHERE = {"model", "prompt", "token_ids", "chat", "sampling", "idempotency_key"}
"""Inputs, the options above, and the key that serves once."""


@pytest.mark.failure("B095")
async def test_every_field_of_a_request_has_an_effect_that_can_be_seen(rig: Rig) -> None:
    assert EFFECTS.keys() | TESTED_ELSEWHERE == {field.name for field in pb.GenerateRequest.DESCRIPTOR.fields}
    rig.worker.script = says("hello")
    rig.worker.logprob = lambda token_id: (-1.0, [])
    plain = await generate(rig)
    for name, (fields, is_seen) in EFFECTS.items():
        assert not is_seen(rig, plain), f"{name} shows without being asked for"
        assert is_seen(rig, await generate(rig, **fields)), name
        plain = await generate(rig)


@pytest.mark.failure("B102")
async def test_a_long_tokenisation_holds_up_nobody_else(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, has_begun = threading.Event(), threading.Event()
    encode = ByteTokenizer.encode_text

    def slow(self: ByteTokenizer, text: str, *, add_bos: bool, max_tokens: int | None = None) -> list[int]:
        if text.startswith("_"):
            has_begun.set()
            assert may_end.wait(30)
        return encode(self, text, add_bos=add_bos)

    monkeypatch.setattr(ByteTokenizer, "encode_text", slow)
    adversary = asyncio.create_task(generate(rig, prompt="_" * 1500))
    try:
        await rig.until(has_begun.is_set)
        for _ in range(5):
            assert (await generate(rig)).text() == "hello world"
        assert rig.parts.is_ready
        assert not adversary.done()
    finally:
        may_end.set()
    assert (await adversary).receipt.usage.prompt_tokens == 1501
