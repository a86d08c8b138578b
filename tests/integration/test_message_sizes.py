"""Messages larger than gRPC's own limit of 4 MiB, over every hop that a prompt and an answer take."""

import pytest

from protos.gateway.v1 import gateway_pb2 as pb
from services.chassis.grpc import SETTINGS
from services.domain.errors import InvalidField, PromptTooLong
from tests.fakes.gateway_rig import failure_of, gateway_rig, generate
from tests.fakes.worker_server import says

MANY = 2_200_000
"""Ids over 127 take two bytes: over 4 MiB from the caller to the gateway, and from there to the worker."""


@pytest.mark.failure("B139")
async def test_a_prompt_of_over_4_mib_reaches_its_worker() -> None:
    async with gateway_rig(max_context_tokens=2 * MANY, total_pages=MANY) as rig:
        ids = [200] * MANY
        assert pb.TokenIds(ids=ids).ByteSize() > 4 * 2**20
        answer = await generate(rig, token_ids=pb.TokenIds(ids=ids))
        assert answer.receipt.usage.prompt_tokens == MANY
        assert answer.text() == "hello world"


@pytest.mark.failure("B139")
async def test_texts_below_and_above_4_mib_are_read_and_one_above_the_limit_is_refused_by_name() -> None:
    async with gateway_rig() as rig:
        for num_bytes in (3_900_000, 4_100_000, SETTINGS.max_message_bytes - 1024):
            error = await failure_of(rig, prompt="x" * num_bytes)
            assert isinstance(error, PromptTooLong)
            assert f"got {num_bytes}" in error.message
        error = await failure_of(rig, prompt="x" * 20_000_000)
        assert type(error) is InvalidField
        assert error.detail.field == "request"
        assert f"at most {SETTINGS.max_message_bytes} bytes, got 200000" in error.message
        assert (await generate(rig)).text() == "hello world"


@pytest.mark.failure("B139")
async def test_answers_of_over_4_mib_arrive_whole() -> None:
    """One message of 6 MB, and a stream of eight choices whose every token has twenty alternatives."""
    async with gateway_rig(max_context_tokens=2 * MANY, total_pages=MANY) as rig:
        text = "x" * 1_500_000
        tokens = await rig.stub.Tokenize(pb.TokenizeRequest(model="tiny", text=text, return_bytes=True))
        assert tokens.ByteSize() > 4 * 2**20
        assert b"".join(tokens.bytes) == text.encode()
        rig.worker.script = says("hello" * 100)
        rig.worker.logprob = lambda token_id: (-1.0, [(other, -2.0) for other in range(20)])
        answer = await generate(rig, n=8, logprobs=20, max_output_tokens=500)
        assert [answer.text(choice) for choice in range(8)] == ["hello" * 100] * 8
        records = [record for delta in answer.of("delta") for record in delta.logprobs]
        assert [len(record.top) for record in records] == [20] * 8 * 500
