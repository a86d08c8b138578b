"""The worker's link to its kvmanager, against a scripted one over real gRPC."""

import pytest
import structlog.testing

from protos.kvmanager.v1 import kvmanager_pb2 as kv
from services.domain.block_hash import DIGEST_BYTES, hash_blocks
from services.domain.ids import BlockHash, Epoch
from services.rpc.worker_kvmanager_link import SNAPSHOT_PART_BLOCKS, snapshot_parts
from tests.fakes.worker_peers import ScriptedKvManager, scripted
from tests.integration.worker_bench import HandGateway, running_worker


def split_hashes(joined: bytes) -> set[bytes]:
    return {joined[i : i + DIGEST_BYTES] for i in range(0, len(joined), DIGEST_BYTES)}


async def test_a_new_kvmanager_gets_a_snapshot_and_then_numbered_events() -> None:
    manager = ScriptedKvManager()
    async with scripted(manager) as address, running_worker(kvmanager=address) as worker:
        await manager.wait_for(lambda: manager.snapshots)
        assert (manager.snapshots[0].seq, manager.snapshots[0].hashes) == (0, b"")
        gateway = HandGateway(worker)
        await gateway.connect()
        prompt = list(range(40))
        await gateway.wait_end(await gateway.submit(prompt_ids=prompt, max_output=1))
        blocks = set(hash_blocks(prompt, salt=b"salt"))
        await manager.wait_for(lambda: split_hashes(b"".join(e.stored for e in manager.events)) >= blocks)
        await manager.wait_for(lambda: manager.events[-1].tenant_pages.get("local") == 0)
        assert [e.seq for e in manager.events] == list(range(1, len(manager.events) + 1))
        manager.send(need_snapshot=kv.NeedSnapshot())
        await manager.wait_for(lambda: len(manager.snapshots) > 1)
        assert split_hashes(manager.snapshots[1].hashes) == blocks
        assert manager.snapshots[1].seq == manager.events[-1].seq


@pytest.mark.failure("B155")
async def test_after_a_break_events_go_on_by_number_and_a_new_boot_gets_everything() -> None:
    manager = ScriptedKvManager()
    async with scripted(manager) as address, running_worker(kvmanager=address) as worker:
        await manager.wait_for(lambda: manager.snapshots)
        gateway = HandGateway(worker)
        await gateway.connect()
        await gateway.wait_end(await gateway.submit(num_prompt=33, max_output=1))
        await manager.wait_for(lambda: any(e.stored for e in manager.events))
        await manager.stop()
        second = list(range(100, 140))
        await gateway.wait_end(await gateway.submit(prompt_ids=second, max_output=1))
        await manager.start()
        blocks = set(hash_blocks(second, salt=b"salt"))
        await manager.wait_for(lambda: split_hashes(b"".join(e.stored for e in manager.events)) >= blocks)
        assert not manager.snapshots
        assert [e.seq for e in manager.events] == list(range(1, len(manager.events) + 1))
        await manager.stop()
        manager.epoch = Epoch(78)
        await manager.start()
        await manager.wait_for(lambda: manager.snapshots)
        assert split_hashes(manager.snapshots[0].hashes) >= blocks


async def test_slices_bound_what_a_tenant_may_hold_and_outlive_the_kvmanager() -> None:
    manager = ScriptedKvManager()
    async with scripted(manager) as address, running_worker(kvmanager=address) as worker:
        await manager.wait_for(lambda: manager.snapshots)
        manager.give("small", 2, cap=4)
        await manager.wait_for(lambda: manager.in_force and manager.in_force[-1].version == manager.version)
        await manager.stop()
        gateway = HandGateway(worker)
        await gateway.connect()
        over = await gateway.wait_end(await gateway.submit(num_prompt=60, tenant="small"))
        assert over.refused.quota == "tenant/kv_pages"
        await gateway.wait_end(await gateway.submit(num_prompt=60, tenant="other"))
        assert gateway.num_tokens(2) == 10
        await manager.start()
        await manager.wait_for(lambda: len(manager.hellos) > 1)
        (kept,) = manager.hellos[1].slices.tenants
        assert (kept.tenant, kept.max_pages, kept.bound) == ("small", 2, 2)


async def test_a_request_waits_for_a_larger_slice_and_what_it_needs_is_told_with_numbers() -> None:
    manager = ScriptedKvManager()
    async with scripted(manager) as address, running_worker(kvmanager=address) as worker:
        await manager.wait_for(lambda: manager.snapshots)
        manager.give("small", 2, cap=8)
        gateway = HandGateway(worker)
        await gateway.connect()
        handle = await gateway.submit(num_prompt=60, tenant="small")
        # The slice may be told in force before the request, so before any tenant, arrived.
        await manager.wait_for(
            lambda: manager.in_force and any(tenant.needs for tenant in manager.in_force[-1].tenants)
        )
        said = manager.in_force[-1]
        assert (said.version, said.tenants[0].max_pages, said.tenants[0].needs) == (manager.version, 2, 5)
        manager.give("small", 5, cap=8)
        await gateway.wait_end(handle)
        assert gateway.num_tokens(handle) == 10
        await manager.wait_for(
            lambda: (
                manager.in_force[-1].version == manager.version
                and not any(tenant.needs for tenant in manager.in_force[-1].tenants)
            )
        )


async def test_cached_blocks_go_when_nobody_used_them_for_the_time_that_the_policy_gives() -> None:
    manager = ScriptedKvManager()
    async with scripted(manager) as address, running_worker(kvmanager=address) as worker:
        await manager.wait_for(lambda: manager.snapshots)
        gateway = HandGateway(worker)
        await gateway.connect()
        await gateway.wait_end(await gateway.submit(prompt_ids=list(range(40)), max_output=1))
        blocks = hash_blocks(range(40), salt=b"salt")
        await manager.wait_for(
            lambda: set(blocks) <= split_hashes(b"".join(e.stored for e in manager.events))
        )
        policy = kv.Policy(version=2, eviction_order=kv.EVICTION_ORDER_LRU, idle_ttl_ms=50)
        manager.send(policy=policy)
        deepest_first = b"".join(reversed(blocks))
        await manager.wait_for(lambda: len(b"".join(e.removed for e in manager.events)) >= len(deepest_first))
        assert b"".join(e.removed for e in manager.events) == deepest_first, "no hole is ever told"
        assert {e.removal_reason for e in manager.events if e.removed} == {kv.REMOVAL_REASON_POLICY}


async def test_pages_are_given_up_in_the_order_of_the_policy_least_recently_used_first() -> None:
    """Three prompts of 4 blocks fill 14 pages; the first is used again, then a fourth needs room."""
    prompts = [[100 * number + token for token in range(65)] for number in range(4)]
    manager = ScriptedKvManager()
    async with scripted(manager) as address, running_worker(kvmanager=address, num_pages=14) as worker:
        await manager.wait_for(lambda: manager.snapshots)
        manager.send(policy=kv.Policy(version=5, eviction_order=kv.EVICTION_ORDER_LRU))
        await manager.wait_for(lambda: any(message.policy.version == 5 for message in manager.messages))
        gateway = HandGateway(worker)
        await gateway.connect()
        for number in (0, 1, 2, 0, 3):
            await gateway.wait_end(await gateway.submit(prompt_ids=prompts[number], max_output=1))
        await manager.wait_for(lambda: any(e.removed for e in manager.events))
        second = hash_blocks(prompts[1], salt=b"salt")
        gone = b"".join(e.removed for e in manager.events)
        assert {e.removal_reason for e in manager.events if e.removed} == {kv.REMOVAL_REASON_SPACE}
        assert gone == b"".join(reversed(second))[: len(gone)], "of the second prompt, its end first"


async def test_a_policy_that_a_worker_cannot_follow_is_refused_in_so_many_words() -> None:
    manager = ScriptedKvManager()
    with structlog.testing.capture_logs() as lines:
        async with scripted(manager) as address, running_worker(kvmanager=address):
            await manager.wait_for(lambda: manager.snapshots)
            for version, order in ((1, kv.EVICTION_ORDER_LRU), (2, 7)):
                manager.send(policy=kv.Policy(version=version, eviction_order=order))
            await manager.wait_for(lambda: sum(one.HasField("policy") for one in manager.messages) == 2)
    said = {line["event"]: line["version"] for line in lines if line["event"].startswith("eviction_policy")}
    assert said == {"eviction_policy_followed": 1, "eviction_policy_refused": 2}
    answers = [message.policy for message in manager.messages if message.HasField("policy")]
    assert [(answer.version, bool(answer.refusal)) for answer in answers] == [(1, False), (2, True)]
    assert "eviction order 7" in answers[1].refusal


def test_a_snapshot_is_cut_into_parts_of_a_mebibyte() -> None:
    blocks = [
        BlockHash(number.to_bytes(DIGEST_BYTES, "big")) for number in range(SNAPSHOT_PART_BLOCKS * 2 + 1)
    ]
    parts = list(snapshot_parts(blocks, 9))
    assert [(part.first, part.more, part.seq) for part in parts] == [
        (True, True, 9),
        (False, True, 9),
        (False, False, 9),
    ]
    assert max(len(part.hashes) for part in parts) == 1 << 20
    assert b"".join(part.hashes for part in parts) == b"".join(blocks)
