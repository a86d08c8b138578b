"""The worker's stream to gateways, over real gRPC against the sim executor."""

from tests.integration.worker_bench import HandGateway, running_worker


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
