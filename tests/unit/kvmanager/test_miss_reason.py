"""Why a prompt missed, from bounded history."""

import pytest

from kvmanager.core.miss_reason import AskedHistory, HistoryBounds, Missed, RemovalHistory, explain_miss
from services.domain.block_hash import hash_blocks
from services.domain.ids import BlockHash, TenantId
from services.domain.miss_reason import MissReason

TENANT = TenantId("t")
PROMPT = hash_blocks(range(64), salt=b"t")
OTHER_TAIL = hash_blocks([*range(32), *range(900, 932)], salt=b"t")


class History:
    """Both histories and a question."""

    def __init__(self, bounds: HistoryBounds | None = None) -> None:
        bounds = bounds or HistoryBounds()
        self.removals = RemovalHistory(bounds)
        self.asked = AskedHistory(bounds)

    def explain(
        self,
        hashes: list[BlockHash],
        num_cached: int,
        *,
        own_salt: bool = False,
        held_elsewhere: bool = False,
        tenant: TenantId = TENANT,
    ) -> MissReason:
        missed = Missed(
            tenant=tenant,
            hashes=hashes,
            num_cached=num_cached,
            own_salt=own_salt,
            held_elsewhere=held_elsewhere,
        )
        return explain_miss(missed, self.removals, self.asked)


def test_a_whole_hit_and_a_prompt_without_full_blocks_miss_nothing() -> None:
    assert History().explain(PROMPT, 4) is MissReason.NONE
    assert History().explain([], 0) is MissReason.NONE


def test_nothing_known_is_never_seen() -> None:
    assert History().explain(PROMPT, 0) is MissReason.NEVER_SEEN


@pytest.mark.parametrize("reason", [MissReason.EVICTED_FOR_SPACE, MissReason.EVICTED_BY_POLICY])
def test_a_removed_block_keeps_its_reason(reason: MissReason) -> None:
    history = History()
    history.removals.removed([PROMPT[2]], reason)
    assert history.explain(PROMPT, 2) is reason
    assert history.explain(PROMPT, 1) is MissReason.NEVER_SEEN


def test_the_latest_way_of_going_counts() -> None:
    history = History()
    history.removals.removed(PROMPT, MissReason.EVICTED_FOR_SPACE)
    history.removals.worker_gone(set(PROMPT))
    assert history.explain(PROMPT, 0) is MissReason.WORKER_GONE
    history.removals.removed(PROMPT, MissReason.EVICTED_BY_POLICY)
    assert history.explain(PROMPT, 0) is MissReason.EVICTED_BY_POLICY


def test_the_first_difference_to_an_earlier_prompt_is_told() -> None:
    history = History()
    history.asked.note(TENANT, PROMPT)
    assert history.explain(OTHER_TAIL, 2) is MissReason.FIRST_DIFFERENCE


def test_a_longer_prompt_differs_from_nothing() -> None:
    history = History()
    history.asked.note(TENANT, PROMPT[:2])
    assert history.explain(OTHER_TAIL, 2) is MissReason.NEVER_SEEN


def test_another_tenants_prompts_are_not_compared_with() -> None:
    history = History()
    history.asked.note(TenantId("someone else"), PROMPT)
    assert history.explain(OTHER_TAIL, 2) is MissReason.NEVER_SEEN


def test_prompts_that_share_nothing_do_not_differ_but_are_new() -> None:
    history = History()
    history.asked.note(TENANT, PROMPT)
    assert history.explain(hash_blocks(range(500, 532), salt=b"t"), 0) is MissReason.NEVER_SEEN


def test_an_own_salt_explains_a_prompt_that_shares_nothing() -> None:
    assert History().explain(PROMPT, 0, own_salt=True) is MissReason.OWN_SALT
    assert History().explain(PROMPT, 1, own_salt=True) is MissReason.NEVER_SEEN


def test_a_block_that_somebody_has_is_on_another_worker() -> None:
    assert History().explain(PROMPT, 1, held_elsewhere=True) is MissReason.ON_ANOTHER_WORKER


def test_removals_are_bounded_and_the_oldest_is_forgotten() -> None:
    removals = RemovalHistory(HistoryBounds(removed_blocks=2, gone_blocks=4))
    removals.removed(PROMPT[:3], MissReason.EVICTED_FOR_SPACE)
    assert removals.reason_of(PROMPT[0]) is None
    assert removals.reason_of(PROMPT[2]) is MissReason.EVICTED_FOR_SPACE
    removals.worker_gone({PROMPT[0], PROMPT[3]})
    removals.worker_gone(set(OTHER_TAIL))
    assert removals.reason_of(PROMPT[3]) is None
    assert removals.reason_of(OTHER_TAIL[3]) is MissReason.WORKER_GONE


def test_remembered_prompts_are_bounded_and_their_beginnings_stay() -> None:
    history = History(HistoryBounds(asked_tenants=1, asked_blocks=2))
    history.asked.note(TENANT, PROMPT)
    assert history.explain(OTHER_TAIL, 2) is MissReason.FIRST_DIFFERENCE
    early = hash_blocks([*range(16), *range(50, 66)], salt=b"t")
    assert history.explain(early, 1) is MissReason.FIRST_DIFFERENCE
    history.asked.note(TenantId("u"), PROMPT)
    assert history.explain(OTHER_TAIL, 2) is MissReason.NEVER_SEEN
