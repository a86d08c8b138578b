"""The table of `python -m bench.tenants` judges: a row that does not hold, or holds without, fails it."""

from collections.abc import AsyncIterator

import pytest

from bench.tenants import __main__ as command
from bench.tenants.check import Outcome
from bench.tenants.side_channel import Guesses, judged
from bench.tenants.table import Row, check_row, policy_row

YES, NO = Outcome(True, "yes"), Outcome(False, "no")


@pytest.mark.parametrize(
    ("without", "with_it", "holds"), [(NO, YES, True), (YES, YES, False), (NO, NO, False), (YES, NO, False)]
)
def test_a_check_holds_with_its_feature_and_not_without(
    without: Outcome, with_it: Outcome, holds: bool
) -> None:
    assert check_row("a check", without, with_it).holds is holds


@pytest.mark.parametrize(
    ("fifo", "fair", "is_control", "holds"),
    [(9, 1, True, True), (1, 1, True, False), (1, 1, False, True), (9, 9, False, False)],
)
def test_a_figure_holds_where_ours_does_and_fifo_does_not(
    fifo: int, fair: int, is_control: bool, holds: bool
) -> None:
    values = {"fifo": fifo, "vtc": 5, "fair": fair}
    row = policy_row("a figure", values, str, "<= 2", lambda one: one <= 2, is_control=is_control)
    assert row.holds is holds
    assert row.figures == (str(fifo), "5", str(fair))


@pytest.mark.parametrize("holds", [True, False])
def test_the_command_ends_with_its_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], holds: bool
) -> None:
    async def part(is_quick: bool) -> AsyncIterator[Row]:
        assert is_quick
        yield Row("first", ("1", "", "2"), "more", True)
        yield Row("second", ("1", "", "2"), "more", holds)

    monkeypatch.setattr(command, "PARTS", {"part": part})
    assert command.main(["--quick", "part"]) == (0 if holds else 1)
    head, first, second, end = capsys.readouterr().out.splitlines()
    assert head.split() == ["fifo", "/", "off", "vtc", "ours", "/", "on", "asked"]
    assert first.endswith("ok")
    assert second.endswith("ok" if holds else "NO")
    assert end == f"{1 + holds} of 2 rows hold"


def test_a_part_that_is_none_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["fairnes"])
    assert "fairnes: no part of this table; it has fairness, checks" in capsys.readouterr().err


def test_a_side_channel_is_judged_by_cached_tokens_and_by_times() -> None:
    alike = [1.0 + number / 1000 for number in range(1000)]
    assert [one.holds for one in judged(Guesses(known=alike, fresh=list(alike)))] == [True, True]
    assert [one.holds for one in judged(Guesses(known=alike, fresh=list(alike), num_cached=1))] == [
        False,
        True,
    ]
    for shift in (-0.1, 0.1):
        seen = Guesses(known=alike, fresh=[one + shift for one in alike])
        assert [one.holds for one in judged(seen)] == [True, False]
