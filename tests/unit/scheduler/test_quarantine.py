"""Which prompts are blamed for workers' deaths, and for how long."""

import random
from pathlib import Path

import pytest

from scheduler.core.quarantine import MAX_PROMPTS, Quarantine
from services.domain.ids import Epoch, WorkerId
from services.domain.prompt_digest import digest_prompt

KEEP_S = 100.0


def boot(number: int, epoch: int = 1) -> tuple[WorkerId, Epoch]:
    return WorkerId(f"worker-{number}"), Epoch(epoch)


def test_a_prompt_of_another_tenant_is_another_prompt_and_the_guide_says_so() -> None:
    one, same, other = (digest_prompt([1, 2, 3], salt=salt, model="m") for salt in (b"a", b"a", b"b"))
    quarantine = Quarantine(KEEP_S)
    assert quarantine.died(boot(0), [one], 0.0) == []
    assert quarantine.died(boot(1), [same], 0.0) == [one]
    assert quarantine.find(other, 0.0) is None
    assert quarantine.died(boot(2), [other], 0.0) == []
    assert quarantine.died(boot(3), [other], 0.0) == [other]
    guide = (Path(__file__).parents[3] / "docs" / "tenants.md").read_text("utf-8")
    assert "The same prompt from a second tenant is therefore another prompt" in guide


def test_the_second_death_quarantines_a_prompt_and_never_with_the_feature_off() -> None:
    quarantine = Quarantine(KEEP_S)
    assert quarantine.died(boot(0), [b"bad", b"company"], 0.0) == []
    assert quarantine.is_suspect(b"bad", 0.0)
    assert quarantine.find(b"bad", 0.0) is None
    assert quarantine.died(boot(1), [b"bad", b"other"], 1.0) == [b"bad"]
    held = quarantine.find(b"bad", 1.0)
    assert held is not None
    assert held.boots == {boot(0), boot(1)}
    off = Quarantine(0.0)
    for number in range(5):
        assert off.died(boot(number), [b"bad"], 0.0) == []
    assert off.is_empty


def test_two_boots_of_one_worker_are_two() -> None:
    quarantine = Quarantine(KEEP_S)
    quarantine.died(boot(0, 1), [b"bad"], 0.0)
    assert quarantine.died(boot(0, 1), [b"bad"], 0.0) == []
    assert quarantine.died(boot(0, 2), [b"bad"], 0.0) == [b"bad"]


def test_each_good_end_acquits_of_the_death_before_it_or_of_the_next() -> None:
    quarantine = Quarantine(KEEP_S)
    for number in range(5):
        quarantine.died(boot(number), [b"good"], 0.0)
        quarantine.served(b"good")
        assert quarantine.is_empty
    for number in range(5, 10):
        quarantine.served(b"good")
        assert quarantine.died(boot(number), [b"good"], 1.0) == []
        assert quarantine.is_empty


@pytest.mark.failure("B183")
@pytest.mark.parametrize("num_good", [1, 9])
def test_good_ends_beforehand_acquit_of_one_death_and_not_of_all_that_follow(num_good: int) -> None:
    quarantine = Quarantine(KEEP_S)
    for _ in range(num_good):
        quarantine.served(b"bad")
    died = [quarantine.died(boot(number), [b"bad"], 0.0) for number in range(3)]
    assert died == [[], [], [b"bad"]]
    quarantine.served(b"bad")
    assert quarantine.find(b"bad", 0.0) is None, "one of two is taken back"
    assert quarantine.is_suspect(b"bad", 0.0)


def test_of_a_death_while_it_was_kept_apart_no_good_end_acquits() -> None:
    quarantine = Quarantine(KEEP_S)
    quarantine.died(boot(0), [b"bad"], 0.0)
    assert quarantine.died(boot(1), [b"bad"], 0.0, apart=[b"bad"]) == [b"bad"]
    quarantine.served(b"bad")
    quarantine.served(b"bad")
    assert quarantine.find(b"bad", 0.0) is None
    assert quarantine.is_suspect(b"bad", 0.0), "of the first it is acquitted"
    assert quarantine.died(boot(2), [b"bad"], 0.0, apart=[b"bad"]) == [b"bad"]
    for _ in range(3):
        quarantine.served(b"bad")
        assert quarantine.find(b"bad", 0.0) is not None
    quarantine.lives(boot(2))
    assert quarantine.find(b"bad", 0.0) is None, "that worker did not die"


def test_what_an_earlier_term_quarantined_no_good_end_releases() -> None:
    quarantine = Quarantine(KEEP_S)
    quarantine.restore({b"bad": KEEP_S}, 0.0)
    quarantine.died(boot(0), [b"bad"], 0.0)
    quarantine.served(b"bad")
    assert quarantine.find(b"bad", 0.0) is not None


def test_a_boot_that_comes_back_takes_its_accusation_back() -> None:
    quarantine = Quarantine(KEEP_S)
    quarantine.died(boot(0), [b"one"], 0.0)
    quarantine.died(boot(1), [b"one", b"two"], 0.0)
    quarantine.lives(boot(1))
    assert quarantine.find(b"one", 0.0) is None
    assert quarantine.is_suspect(b"one", 0.0)
    assert not quarantine.is_suspect(b"two", 0.0)


def test_it_ends_with_time_and_by_an_operator() -> None:
    quarantine = Quarantine(KEEP_S)
    for number in range(2):
        quarantine.died(boot(number), [b"bad", b"worse"], 0.0)
    assert [one.digest for one in quarantine.entries(1.0)] == [b"bad", b"worse"]
    assert quarantine.release(b"bad")
    assert not quarantine.release(b"bad")
    assert not quarantine.is_suspect(b"bad", 1.0)
    assert quarantine.find(b"worse", KEEP_S) is None
    assert quarantine.is_empty


@pytest.mark.parametrize("seed", range(10))
def test_it_stays_bounded_and_holds_only_what_two_boots_died_with(seed: int) -> None:
    draw = random.Random(seed)
    quarantine, with_prompt = Quarantine(KEEP_S), {}
    for now in range(300):
        digests = [draw.randbytes(1) if draw.random() < 0.3 else draw.randbytes(8) for _ in range(30)]
        where = boot(draw.randrange(4), now)
        for digest in digests:
            with_prompt.setdefault(digest, set()).add(where)
        quarantine.died(where, digests, float(now))
        if draw.random() < 0.3:
            quarantine.served(draw.randbytes(1))
        entries = quarantine.entries(float(now))
        assert len(entries) <= MAX_PROMPTS
        assert len(quarantine._suspects) <= MAX_PROMPTS
        assert all(len(one.boots) >= 2 and one.boots <= with_prompt[one.digest] for one in entries)
