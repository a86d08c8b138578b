"""Streams of the gateway over real gRPC: order of events, text, choices, logprobs, refusals."""

import math
from typing import Any

import pytest

from protos.gateway.v1 import gateway_pb2 as pb
from protos.types.v1 import types_pb2
from services.artifacts.long_text import TooManyTokens
from services.domain.errors import (
    BadCredential,
    BadRow,
    InvalidField,
    NoWorker,
    PromptTooLong,
    QueueFull,
    ServeError,
    UnknownModel,
)
from services.domain.generation import Usage
from tests.fakes.byte_tokenizer import EOS, EOS_OF_TURN, ByteTokenizer
from tests.fakes.gateway_rig import ACME, ACME_KEY, Rig, a_request, failure_of, gateway_rig, generate, use_by
from tests.fakes.worker_server import says


@pytest.mark.failure("B075")
async def test_a_stream_has_start_deltas_end_and_receipt_in_order(rig: Rig) -> None:
    rig.worker.cached_tokens = 5
    answer = await generate(rig, client_label="mine", sampling=pb.SamplingOptions(seed=7))
    kinds = [message.WhichOneof("event") for message in answer.messages]
    assert kinds[0] == "started"
    assert kinds[-2:] == ["finished", "receipt"]
    assert set(kinds[1:-2]) == {"delta"}
    assert answer.text() == "hello world"
    started, finished, receipt = answer.of("started")[0], answer.of("finished")[0], answer.receipt
    assert (started.prompt_tokens, started.cached_tokens, started.seed) == (6, 5, 7)
    assert (started.model, started.model_revision) == ("tiny", "r1")
    assert (finished.reason, finished.output_tokens) == (types_pb2.FINISH_REASON_LENGTH, 11)
    assert (receipt.usage.prompt_tokens, receipt.usage.cached_tokens, receipt.usage.output_tokens) == (
        6,
        5,
        11,
    )
    assert (receipt.worker, receipt.attempts, receipt.client_label) == ("worker-0", 1, "mine")
    assert (receipt.page_seconds, receipt.prefill_ms, receipt.decode_ms) == (1.5, 250, 500)
    assert 0 < receipt.ttft_ms < 5000


@pytest.mark.parametrize(
    ("cached_tokens", "reason"),
    [
        (0, types_pb2.MISS_REASON_NEVER_SEEN),
        (16, types_pb2.MISS_REASON_NEVER_SEEN),
        (32, types_pb2.MISS_REASON_NONE),
    ],
)
async def test_the_receipt_believes_the_worker_where_it_had_more_than_was_known(
    rig: Rig, cached_tokens: int, reason: int
) -> None:
    rig.worker.cached_tokens = cached_tokens
    cache = (await generate(rig, prompt="x" * 40)).receipt.cache
    assert (cache.miss_reason, cache.first_miss_token) == (reason, cached_tokens)


@pytest.mark.failure("B073")
@pytest.mark.parametrize("text", ["👩‍👩‍👧 naïve 日本語", "e\u0301\u0327 🇩🇪", "plain"])
async def test_characters_whose_bytes_come_one_by_one_arrive_whole(rig: Rig, text: str) -> None:
    rig.worker.script, rig.worker.step_s = says(text), 0.001
    answer = await generate(rig)
    assert answer.text() == text
    assert not any("\ufffd" in delta.text for delta in answer.of("delta"))


@pytest.mark.failure("B070")
@pytest.mark.parametrize("include_stop", [False, True])
async def test_a_stop_string_ends_the_choice_and_the_worker_is_told(rig: Rig, include_stop: bool) -> None:
    rig.worker.script = lambda submit, choice: list(b"one END" + b"x" * 500)
    rig.worker.step_s = 0.01
    answer = await generate(rig, stop=["END"], include_stop=include_stop)
    finished = answer.of("finished")[0]
    assert answer.text() == ("one END" if include_stop else "one ")
    assert (finished.reason, finished.stop_string) == (types_pb2.FINISH_REASON_STOP_STRING, "END")
    assert finished.output_tokens == answer.receipt.usage.output_tokens == 7
    assert rig.worker.num_tokens < 500


@pytest.mark.failure("B104")
@pytest.mark.parametrize("end", [EOS, EOS_OF_TURN])
async def test_each_end_of_sequence_id_ends_with_stop_and_shows_nothing(rig: Rig, end: int) -> None:
    rig.worker.script = lambda submit, choice: [*b"bye", end, *b"never"]
    answer = await generate(rig)
    assert answer.text() == "bye"
    assert answer.of("finished")[0].reason == types_pb2.FINISH_REASON_STOP
    assert answer.receipt.usage.output_tokens == 4


@pytest.mark.failure("B077")
async def test_choices_are_kept_apart_and_each_ends_once(rig: Rig) -> None:
    rig.worker.script, rig.worker.step_s = says("a", "bee", "sea shell"), 0.001
    answer = await generate(rig, n=3)
    assert [answer.text(choice) for choice in range(3)] == ["a", "bee", "sea shell"]
    assert sorted(finished.choice for finished in answer.of("finished")) == [0, 1, 2]
    assert answer.receipt.usage.output_tokens == 13


@pytest.mark.failure("B079")
@pytest.mark.failure("B081")
@pytest.mark.parametrize("alternatives", [0, 2])
async def test_every_token_has_its_logprob_once(rig: Rig, alternatives: int) -> None:
    rig.worker.script = says("a👍 stop it")
    top = [(98, -1.0), (99, -math.inf)][:alternatives]
    rig.worker.logprob = lambda token_id: (-token_id / 256, top)
    answer = await generate(rig, logprobs=alternatives, return_token_ids=True, stop=["stop!"])
    data = "a👍 stop it".encode()
    entries = [entry for delta in answer.of("delta") for entry in delta.logprobs]
    assert [entry.token_id for entry in entries] == list(data)
    assert [entry.logprob for entry in entries] == [-token_id / 256 for token_id in data]
    assert {len(entry.top) for entry in entries} == {alternatives}
    assert [one for delta in answer.of("delta") for one in delta.token_ids] == list(data)


async def test_parameters_reach_the_worker_resolved(rig: Rig) -> None:
    await generate(
        rig,
        token_ids=pb.TokenIds(ids=range(33)),
        sampling=pb.SamplingOptions(temperature=0, top_k=3, logit_bias={5: -2.0}),
        max_output_tokens=5,
        min_output_tokens=2,
        stop_token_ids=[9],
        metadata=(("traceparent", "00-" + "a" * 32 + "-" + "b" * 16 + "-01"),),
    )
    submit, acquire = rig.worker.submits[0], rig.scheduler.acquired[0]
    assert list(submit.prompt_ids) == list(range(33))
    assert (submit.sampling.temperature, submit.sampling.top_k, submit.sampling.top_p) == (0, 3, 1)
    assert dict(submit.sampling.logit_bias) == {5: -2.0}
    assert (submit.max_output_tokens, submit.min_output_tokens) == (5, 2)
    assert sorted(submit.stop_token_ids) == [9, EOS, EOS_OF_TURN]
    assert len(submit.block_hashes) == 32
    assert b"".join(acquire.block_hashes) == submit.block_hashes
    assert submit.traceparent.split("-")[1] == "a" * 32
    assert (acquire.num_prompt_tokens, acquire.tenant, acquire.n) == (33, "local", 1)


@pytest.mark.failure("B050")
async def test_hashes_depend_on_tenant_and_salt_and_are_absent_on_opt_out(rig: Rig) -> None:
    ids = pb.TokenIds(ids=[1] * 16)
    await generate(rig, token_ids=ids)
    await generate(rig, token_ids=ids, cache_salt="x")
    await generate(rig, token_ids=ids, metadata=ACME_KEY)
    await generate(rig, token_ids=ids, cache_opt_out=True)
    hashes = [submit.block_hashes for submit in rig.worker.submits]
    assert len(set(hashes)) == 4
    assert hashes[3] == b""
    assert [acquire.own_salt for acquire in rig.scheduler.acquired] == [False, True, False, False]


@pytest.mark.parametrize(
    ("fields", "kind", "field"),
    [
        ({"sampling": pb.SamplingOptions(top_p=0)}, InvalidField, "sampling.top_p"),
        ({"n": 17}, InvalidField, "n"),
        ({"prompt": ""}, InvalidField, "prompt"),
        ({"band": 9}, InvalidField, "band"),
        ({"long_prompt": 9}, InvalidField, "long_prompt"),
        ({"limits": types_pb2.Limits(queue_ms=0)}, InvalidField, "limits.queue_ms"),
        ({"token_ids": pb.TokenIds(ids=[260])}, InvalidField, "token_ids"),
        ({"prompt": "x" * 2000, "max_output_tokens": 100}, PromptTooLong, "max_output_tokens"),
        ({"prompt": "x" * 3000}, PromptTooLong, "prompt"),
        ({"model": "other"}, UnknownModel, None),
        ({"metadata": (("authorization", "Bearer nope"),)}, BadCredential, None),
        ({"metadata": (("authorization", "Basic acme-key"),)}, BadCredential, None),
        ({"metadata": (("x-api-key", "nope"),)}, BadCredential, None),
    ],
)  # fmt: skip
@pytest.mark.failure("B051")
@pytest.mark.failure("B098")
async def test_a_bad_call_is_refused_by_name_and_holds_nothing(
    rig: Rig, fields: dict[str, Any], kind: type[ServeError], field: str | None
) -> None:
    error = await failure_of(rig, **fields)
    assert type(error) is kind
    assert error.detail.field == field
    assert rig.scheduler.acquired == []
    await rig.settled()


async def test_too_much_for_the_pool_is_refused_with_numbers() -> None:
    async with gateway_rig(total_pages=4) as rig:
        error = await failure_of(rig, prompt="x" * 40, max_output_tokens=30)
        assert "needs 5 KV pages, the limit is 4" in error.message
        assert (await generate(rig, prompt="x" * 40)).text() == "hello world"


async def test_a_prompt_may_be_cut_from_the_left(rig: Rig) -> None:
    answer = await generate(
        rig, prompt="x" * 1000 + "y" * 1000, long_prompt=pb.LONG_PROMPT_CUT_LEFT, max_output_tokens=1000
    )
    assert answer.of("started")[0].cut_tokens == 2001 - 1048
    assert list(rig.worker.submits[0].prompt_ids[:3]) == [256, 120, 120]
    assert len(rig.worker.submits[0].prompt_ids) == 1048


async def test_a_prompt_far_above_the_byte_cap_may_be_cut_too(rig: Rig) -> None:
    await generate(rig, prompt="x" * 100_000, long_prompt=pb.LONG_PROMPT_CUT_LEFT, max_output_tokens=1000)
    assert len(rig.worker.submits[0].prompt_ids) == 1048


@pytest.mark.failure("B102")
async def test_a_prompt_that_was_not_counted_to_its_end_is_refused_with_numbers(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gives_up(
        self: ByteTokenizer, text: str, *, add_bos: bool, max_tokens: int | None = None
    ) -> list[int]:
        assert max_tokens == 2047
        raise TooManyTokens

    monkeypatch.setattr(ByteTokenizer, "encode_text", gives_up)
    error = await failure_of(rig, n=2, prompt="né")
    assert (type(error), error.detail.field) == (PromptTooLong, "prompt")
    says = "must have at most 2047 tokens for this model, n = 2, got more than 2047, in 3 bytes"
    assert says in error.message
    await rig.settled()


async def test_a_conversation_is_encoded_by_the_models_template(rig: Rig) -> None:
    chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="hi")])
    await generate(rig, chat=chat)
    tokens = await rig.stub.Tokenize(pb.TokenizeRequest(model="tiny", chat=chat, return_bytes=True))
    assert list(rig.worker.submits[0].prompt_ids) == list(b"user:hi|") == list(tokens.ids)
    assert b"".join(tokens.bytes) == b"user:hi|"
    assert tokens.max_context_tokens == 2048


async def test_models_are_listed_as_the_scheduler_serves_them(rig: Rig) -> None:
    models = (await rig.stub.ListModels(pb.ListModelsRequest())).models
    assert [(model.name, model.revision, model.num_workers) for model in models] == [("tiny", "r1", 1)]
    rig.scheduler.models = []
    rig.scheduler.send_models()
    await rig.until(lambda: not rig.parts.is_ready)
    assert type(await failure_of(rig)) is NoWorker


async def test_a_rejection_of_the_scheduler_reaches_the_caller(rig: Rig) -> None:
    rig.scheduler.rejects = QueueFull("12 of 12 wait")
    error = await failure_of(rig)
    assert (type(error), error.message) == (QueueFull, "12 of 12 wait")


async def test_a_full_table_refuses(rig: Rig) -> None:
    async with gateway_rig(max_live=1) as small:
        small.worker.is_open.clear()
        call = small.stub.Generate(a_request())
        await small.until(lambda: small.worker.submits)
        refused = await failure_of(small)
        assert type(refused) is QueueFull
        assert refused.detail.usage == Usage()
        assert small.metric("quire_requests_finished_total", reason="QUEUE_FULL") == 1
        call.cancel()
        await small.settled()


@pytest.mark.failure("B090")
@pytest.mark.failure("B182")
async def test_a_bad_row_is_an_internal_error_and_costs_nothing(rig: Rig) -> None:
    rig.worker.refuses = BadRow("logits of a row are not finite")
    error = await failure_of(rig, metadata=ACME_KEY)
    assert type(error) is BadRow
    assert set(error.detail.metadata) == {"correlation_id"}
    assert error.message.endswith(f", correlation id {error.detail.metadata['correlation_id']}")
    await rig.settled()
    use = await use_by(rig.quota, ACME)
    assert (use.num_leases, use.left_tokens) == (0, 1_000_000)
