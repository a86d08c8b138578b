"""The worker's stream to gateways, over real gRPC against the sim executor."""

import grpc
import pytest

from protos.types.v1 import types_pb2
from protos.worker.v1 import worker_pb2 as pb
from services.domain.errors import Code
from tests.integration.worker_bench import VOCAB_SIZE, HandGateway, connected, running_worker


async def test_a_request_streams_its_tokens_and_ends_once() -> None:
    async with running_worker() as worker:
        gateway = HandGateway(worker)
        welcome = await gateway.connect()
        assert not welcome.resumed
        assert welcome.peer.name == "worker-0"
        handle = await gateway.submit(num_prompt=20, max_output=10)
        ended = (await gateway.wait_end(handle)).ended
        assert gateway.num_tokens(handle) == 10
        assert gateway.kinds(handle) == ["accepted", "started", "choice_ended", "ended"]
        assert (ended.usage.prompt_tokens, ended.usage.output_tokens) == (20, 10)
        assert not ended.HasField("failure")
        assert gateway.positions == list(range(1, len(gateway.positions) + 1))
        await worker.wait_empty()


async def test_one_message_carries_all_requests_of_a_gateway() -> None:
    async with running_worker(step_ms=5, num_pages=1200) as worker:
        gateway, other = await connected(worker), await connected(worker, name="gateway-1")
        handles = [await gateway.submit(max_output=1900) for _ in range(8)]
        foreign = await other.submit(max_output=1900)
        await gateway.wait_for(lambda: any(len(step.handles) == 8 for step in gateway.steps))
        await other.wait_for(lambda: other.num_tokens(foreign) > 0)
        for handle in handles:
            await gateway.send(cancel=pb.Cancel(handle=handle))
        await other.send(cancel=pb.Cancel(handle=foreign))
        await worker.wait_empty()
        assert all(set(step.handles) <= set(handles) for step in gateway.steps)
        assert all(list(step.handles) in ([], [foreign]) for step in other.steps)


@pytest.mark.failure("B081")
async def test_logprobs_are_parallel_to_tokens_and_nan_where_not_asked_for() -> None:
    async with running_worker(step_ms=5) as worker:
        gateway = await connected(worker)
        sampling = types_pb2.Sampling(temperature=1, top_p=1, repetition_penalty=1)
        asks = types_pb2.Sampling(temperature=1, top_p=1, repetition_penalty=1, num_logprobs=2)
        of_chosen = types_pb2.Sampling(temperature=1, top_p=1, repetition_penalty=1, num_logprobs=0)
        handles = [await gateway.submit(sampling=one, max_output=20) for one in (sampling, asks, of_chosen)]
        for handle in handles:
            await gateway.wait_end(handle)
        seen = {handle: [] for handle in handles}
        for step in gateway.steps:
            assert len(step.logprobs) in (0, len(step.token_ids))
            tops = {top.index: len(top.token_ids) for top in step.tops}
            owners = [one for one, n in zip(step.handles, step.counts, strict=True) for _ in range(n)]
            for index, handle in enumerate(owners):
                value = step.logprobs[index] if step.logprobs else float("nan")
                seen[handle].append((value == value, tops.get(index, 0)))
        plain, with_two, chosen = (seen[handle] for handle in handles)
        assert set(plain) == {(False, 0)}
        assert set(with_two) == {(True, 2)}
        assert set(chosen) == {(True, 0)}


@pytest.mark.failure("B001")
async def test_a_cancelled_request_is_gone_within_two_steps() -> None:
    async with running_worker(step_ms=20, stuck_after_s=60) as worker:
        gateway = await connected(worker)
        for _ in range(5):
            handle = await gateway.submit(max_output=1500)
            await gateway.wait_for(lambda handle=handle: gateway.num_tokens(handle) >= 3)
            worker.faults.running.clear()
            await gateway.send(cancel=pb.Cancel(handle=handle))
            # The worker has read the Cancel once it refuses what was sent after it.
            await gateway.wait_end(await gateway.submit(tenant=""))
            before = (await worker.status()).steps
            worker.faults.running.set()
            ended = (await gateway.wait_end(handle)).ended
            assert gateway.steps[-1].step <= before + 2
            assert not ended.HasField("failure")
        await worker.wait_empty()


@pytest.mark.failure("B004")
async def test_cancels_are_idempotent_and_unknown_ones_harmless() -> None:
    async with running_worker() as worker:
        gateway = await connected(worker)
        handle = await gateway.submit(max_output=500)
        for _ in range(3):
            await gateway.send(cancel=pb.Cancel(handle=handle))
        await gateway.send(cancel=pb.Cancel(handle=4_000_000_000))
        await gateway.wait_end(handle)
        assert gateway.kinds(handle).count("ended") == 1
        await gateway.wait_end(await gateway.submit())
        await worker.wait_empty()


@pytest.mark.failure("B010")
async def test_cancelling_a_request_of_several_choices_ends_all() -> None:
    async with running_worker(step_ms=5) as worker:
        gateway = await connected(worker)
        handle = await gateway.submit(n=4, max_output=1000)
        await gateway.wait_for(lambda: all(gateway.num_tokens(handle, choice) for choice in range(4)))
        await gateway.send(cancel=pb.Cancel(handle=handle))
        await gateway.wait_end(handle)
        await worker.wait_empty()


async def test_a_choice_that_the_gateway_finishes_ends_alone() -> None:
    async with running_worker(step_ms=5) as worker:
        gateway = await connected(worker)
        handle = await gateway.submit(n=2, max_output=40)
        await gateway.wait_for(lambda: gateway.num_tokens(handle, 0) > 2)
        reason = types_pb2.FINISH_REASON_STOP_STRING
        await gateway.send(finish_choice=pb.FinishChoice(handle=handle, choice=0, reason=reason))
        await gateway.wait_end(handle)
        told = [event.choice_ended for event in gateway.events[handle] if event.HasField("choice_ended")]
        ends = {end.choice: end for end in told}
        assert ends[0].reason == types_pb2.FINISH_REASON_STOP_STRING
        assert ends[0].output_tokens == gateway.num_tokens(handle, 0) < 40
        assert ends[1].reason == types_pb2.FINISH_REASON_LENGTH


OF_THE_FUTURE = types_pb2.Peer(name="gateway-0", epoch=1, protocol_version=99)
TOO_MANY_LOGPROBS = types_pb2.Sampling(top_p=1, repetition_penalty=1, num_logprobs=21)


def refusal(event: pb.Event) -> tuple[int, str, str]:
    return event.refused.code, event.refused.reason, event.refused.field


BAD_FIELDS = [
    ({"prompt_ids": [VOCAB_SIZE]}, "prompt"),
    ({"prompt_ids": [2**32 - 1]}, "prompt"),
    ({"prompt_ids": []}, "prompt"),
    ({"output_ids": [pb.ChoiceIds(ids=[VOCAB_SIZE])]}, "output_ids"),
    ({"output_ids": [pb.ChoiceIds(), pb.ChoiceIds()]}, "output_ids"),
    ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids"),
    ({"stop_token_ids": list(range(300))}, "stop_token_ids"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"band": types_pb2.BAND_UNSPECIFIED}, "band"),
    ({"band": 9}, "band"),
    ({"tenant": ""}, "tenant"),
    ({"salt": b"x" * 65}, "salt"),
    ({"block_hashes": b"x" * 15}, "block_hashes"),
    ({"block_hashes": b"x" * 32}, "block_hashes"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 2**32 - 1}, "max_output_tokens"),
    ({"min_output_tokens": 11}, "min_output_tokens"),
    ({"sampling": types_pb2.Sampling(temperature=float("nan"))}, "sampling.temperature"),
    ({"sampling": types_pb2.Sampling(top_p=2)}, "sampling.top_p"),
    ({"sampling": TOO_MANY_LOGPROBS}, "sampling.num_logprobs"),
    ({"sampling": types_pb2.Sampling(top_p=1, logit_bias={VOCAB_SIZE: 1.0})}, "logit_bias"),
    ({"key": types_pb2.RequestKey(request_id="", attempt=1)}, "key.request_id"),
    ({"key": types_pb2.RequestKey(request_id="r", attempt=0)}, "key.attempt"),
]  # fmt: skip


@pytest.mark.failure("B091")
@pytest.mark.failure("B098")
async def test_a_bad_field_is_refused_by_name_and_alone() -> None:
    async with running_worker(step_ms=20) as worker:
        gateway = await connected(worker)
        bystander = await gateway.submit(max_output=1900)
        for fields, field in BAD_FIELDS:
            code, reason, named = refusal(await gateway.wait_end(await gateway.submit(**fields)))
            assert (code, named) == (Code.INVALID_ARGUMENT.value, field), fields
            assert reason in ("INVALID_FIELD", "PROMPT_TOO_LONG")
        so_far = gateway.num_tokens(bystander)
        await gateway.wait_for(lambda: gateway.num_tokens(bystander) > so_far)
        await gateway.send(cancel=pb.Cancel(handle=bystander))
        await worker.wait_empty()


@pytest.mark.failure("B051")
async def test_a_request_that_can_never_fit_is_refused_with_numbers() -> None:
    async with running_worker(num_pages=8) as worker:
        gateway = await connected(worker)
        refused = (await gateway.wait_end(await gateway.submit(num_prompt=129, max_output=8))).refused
        assert refused.reason == "PROMPT_TOO_LONG"
        assert (refused.metadata["need"], refused.metadata["limit"]) == ("9", "8")
        await gateway.wait_end(await gateway.submit(num_prompt=120, max_output=8))


async def test_another_boots_placement_is_refused() -> None:
    async with running_worker() as worker:
        gateway = await connected(worker)
        event = await gateway.wait_end(await gateway.submit(epoch=gateway.worker_epoch - 1))
        assert refusal(event)[:2] == (Code.ABORTED.value, "STALE_ATTEMPT")


async def test_a_higher_attempt_supersedes_and_a_lower_one_is_refused() -> None:
    async with running_worker(step_ms=5) as worker:
        gateway = await connected(worker)

        def key(attempt: int) -> types_pb2.RequestKey:
            return types_pb2.RequestKey(request_id="again", attempt=attempt)

        second = await gateway.submit(max_output=1900, key=key(2))
        await gateway.wait_for(lambda: gateway.num_tokens(second) > 0)
        first = await gateway.submit(key=key(1))
        assert refusal(await gateway.wait_end(first))[1] == "STALE_ATTEMPT"
        third = await gateway.submit(max_output=5, key=key(3))
        assert (await gateway.wait_end(second)).ended.failure.reason == "STALE_ATTEMPT"
        assert not (await gateway.wait_end(third)).ended.HasField("failure")
        await worker.wait_empty()


async def test_a_handle_used_twice_ends_that_stream_only() -> None:
    async with running_worker(step_ms=5) as worker:
        careless, careful = await connected(worker, name="careless"), await connected(worker)
        handle = await careless.submit(max_output=1000)
        another = types_pb2.RequestKey(request_id="another", attempt=1)
        await careless.send(submit=careless.a_submit(handle, key=another))
        await careless.wait_broken()
        assert careless.error.code() is grpc.StatusCode.INVALID_ARGUMENT
        await careful.wait_end(await careful.submit())


@pytest.mark.failure("B090")
async def test_a_row_of_nan_fails_alone_with_a_typed_error() -> None:
    async with running_worker(step_ms=5) as worker:
        worker.faults.bad_token = 499
        gateway = await connected(worker)
        good = await gateway.submit(max_output=50)
        bad = await gateway.submit(prompt_ids=[1, 499, 2], max_output=50)
        failure = (await gateway.wait_end(bad)).ended.failure
        assert (failure.code, failure.reason) == (Code.INTERNAL.value, "BAD_LOGITS")
        assert not (await gateway.wait_end(good)).ended.HasField("failure")
        assert gateway.num_tokens(good) == 50


async def test_a_stream_must_begin_with_a_hello_of_our_protocol() -> None:
    async with running_worker() as worker:
        for first in (
            pb.ConnectRequest(cancel=pb.Cancel(handle=1)),
            pb.ConnectRequest(
                hello=pb.GatewayHello(peer=types_pb2.Peer(name="g", epoch=1, protocol_version=99))
            ),
        ):
            call = worker.stub.Connect(iter([first]))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                async for _ in call:
                    pass
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
