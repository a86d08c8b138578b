"""Settlements are sent in numbered batches, each until it is done, through outages and deaths."""

import json
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.backlog import Backlog
from gateway.stores.journal import SUFFIX, Journal, JournalFile
from gateway.stores.quota import Batch
from services.domain.limits import Limits
from tests.fakes.quota_values import a_settlement, an_account

LIMITED = Limits(utc_offset_minutes=-330, max_concurrency=3)
ACCOUNT = replace(an_account(LIMITED, Limits()), key_id="k-1", model="m")


class Marks:
    """A store that forgets every id at once: only the batches' numbers tell it what it has."""

    def __init__(self) -> None:
        self.charged: Counter[str] = Counter()
        self._marks: dict[str, int] = {}

    def settle(self, batch: Batch) -> None:
        if batch.number > self._marks.get(batch.boot, 0):
            self._marks[batch.boot] = batch.number
            self.charged.update(one.id for one in batch.settlements)


def opened(folder: Path, boot: str) -> Backlog:
    return Backlog(boot, Journal(folder, boot))


def drain(backlog: Backlog, store: Marks) -> None:
    while (batch := backlog.next()) is not None:
        store.settle(batch)
        backlog.done(batch)


class Gateway:
    """One of those that share a folder, life after life, and what its settlements may come to."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self.lost: set[str] = set()
        """Ids that died with a life that could not write them."""
        self._live(1)

    def _live(self, life: int) -> None:
        self._life = life
        self.backlog = opened(self._folder, f"{self._name}-{life}")
        self._unwritten: set[str] = set()

    def add(self, number: int) -> bool:
        is_taken = self.backlog.add(a_settlement(ACCOUNT, number))
        if is_taken:
            self._unwritten.add(str(number))
        return is_taken

    def keep(self, is_full: bool) -> None:
        self.backlog.keep()
        if not is_full:
            self._unwritten.clear()

    def restart(self, is_full: bool) -> None:
        self.backlog.close()
        self.lost |= self._unwritten if is_full else set()
        self._live(self._life + 1)

    def die(self) -> None:
        """Be killed: nothing is written, and the locks go."""
        journal = self.backlog._journal
        assert journal is not None
        for file in (journal.own, *self.backlog._left):
            file.close()
        self.lost |= self._unwritten
        self._live(self._life + 1)


EVENTS = ("add", "add", "add", "made", "answer lost", "not made", "restart", "killed", "disk", "look")
ACTIONS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(EVENTS)), max_size=80)


@settings(max_examples=200, deadline=None)
@given(ACTIONS)
def test_whatever_happens_in_whatever_order_each_is_charged_once(actions: list[tuple[int, str]]) -> None:
    is_full, append = False, JournalFile.append

    def tried(file: JournalFile, batch: Batch) -> None:
        if is_full:
            raise OSError(28, "No space left on device")
        append(file, batch)

    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.backlog.MAX_PENDING", 5)
        patch.setattr("gateway.backlog.MAX_BATCH", 2)
        patch.setattr("gateway.backlog.MAX_LOADED", 2)
        patch.setattr(JournalFile, "append", tried)
        folder, store, taken = Path(name), Marks(), set()
        gateways = [Gateway(folder, one) for one in ("a", "b")]
        for number, (which, action) in enumerate(actions):
            gateway = gateways[which]
            backlog = gateway.backlog
            if action == "add":
                taken |= {str(number)} if gateway.add(number) else set()
            elif action == "restart":
                gateway.restart(is_full)
            elif action == "killed":
                gateway.die()
            elif action == "disk":
                is_full = not is_full
            elif action == "look":
                backlog.look()
            elif (batch := backlog.next()) is not None:
                if action != "not made":
                    store.settle(batch)
                if action == "made":
                    backlog.done(batch)
                else:
                    gateway.keep(is_full)
        is_full = False
        for gateway in gateways:
            drain(gateway.backlog, store)
            gateway.backlog.look()
            drain(gateway.backlog, store)
            assert gateway.backlog.num_pending == 0
        lost = gateways[0].lost | gateways[1].lost
        assert set(store.charged.values()) <= {1}
        assert taken - lost <= store.charged.keys() <= taken
        for gateway in gateways:
            gateway.backlog.close()
        assert list(folder.iterdir()) == []


def test_what_a_gateway_left_is_settled_by_one_that_lives(tmp_path: Path) -> None:
    store = Marks()
    living, dying = opened(tmp_path, "living"), opened(tmp_path, "dying")
    dying.add(a_settlement(ACCOUNT, "left"))
    dying.keep()
    living.look()
    assert living.next() is None, "it lives"
    dying._journal.own.close()  # type: ignore[union-attr]
    assert living.next() is None, "nobody has looked"
    living.look()
    drain(living, store)
    assert store.charged == {"left": 1}
    living.close()
    assert list(tmp_path.iterdir()) == []


def test_what_was_kept_outlives_a_gateway_that_says_no_goodbye(tmp_path: Path) -> None:
    store = Marks()
    dead = opened(tmp_path, "dead")
    kept = [a_settlement(ACCOUNT, n, ending=bytes([n % 256, 255]), key=f"key-{n}") for n in range(300)]
    for one in kept:
        dead.add(one)
    lost_answer = dead.next()
    assert lost_answer is not None
    store.settle(lost_answer)
    dead.keep()
    # Its lock goes with it; until then nobody else touches the file.
    early = opened(tmp_path, "early")
    assert early.next() is None
    dead._journal.own.close()  # type: ignore[union-attr]
    late = opened(tmp_path, "late")
    found = []
    while (batch := late.next()) is not None:
        found += batch.settlements
        store.settle(batch)
        late.done(batch)
    assert store.charged == Counter(one.id for one in kept)
    zones = (Limits(utc_offset_minutes=-330), Limits())
    scopes = tuple(replace(one, limits=zone) for one, zone in zip(ACCOUNT.scopes, zones, strict=True))
    assert found[7].account == replace(ACCOUNT, scopes=scopes)
    assert [replace(one, account=ACCOUNT) for one in found] == kept
    early.close()
    late.close()
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_was_cut_short_costs_only_itself(tmp_path: Path) -> None:
    first = opened(tmp_path, "first")
    first.add(a_settlement(ACCOUNT, "whole"))
    first.next()
    first.close()
    (file,) = tmp_path.glob(f"*{SUFFIX}")
    assert file.stat().st_mode & 0o777 == 0o600
    boot, number, settlements = json.loads(file.read_text())
    with file.open("a") as end:
        end.write(json.dumps([boot, number + 1, settlements])[:50])
    second, store = opened(tmp_path, "second"), Marks()
    drain(second, store)
    assert store.charged == {"whole": 1}


def test_without_a_journal_or_room_in_it_memory_bounds_what_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.backlog.MAX_PENDING", 3)
    backlog = Backlog("boot")
    assert [backlog.add(a_settlement(ACCOUNT, n)) for n in range(5)] == [True] * 3 + [False] * 2
    backlog = opened(tmp_path, "full")

    def no_room(batch: Batch) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backlog._journal.own, "append", no_room)  # type: ignore[union-attr]
    taken = []
    for n in range(5):
        taken.append(backlog.add(a_settlement(ACCOUNT, n)))
        backlog.keep()
    assert taken == [True] * 3 + [False] * 2
    monkeypatch.undo()
    store = Marks()
    drain(backlog, store)
    assert store.charged == Counter("012")
