"""When a figure that a bench was asked for holds, and how it is shown."""

import pytest

from bench.verdict import Row, verdict


@pytest.mark.parametrize(
    ("asked", "got", "unit", "holds"),
    [
        (4, 4.0, "s", True),
        (4, 4.01, "s", False),
        (100, 3.2, "ms", True),
        (320, 320, "answers", True),
        (320, 319, "answers", False),
        (320, 321, "answers", False),
    ],
)
def test_a_time_holds_up_to_what_is_asked_and_a_count_only_as_it_is(
    asked: float, got: float, unit: str, holds: bool
) -> None:
    row = Row(what="something", asked=asked, got=got, unit=unit)
    assert row.holds is holds
    assert str(row).endswith("holds" if holds else "FALLS SHORT")
    assert f"{asked:g}" in str(row)


@pytest.mark.parametrize(("got", "code"), [(4.0, 0), (4.01, 1)])
def test_one_figure_that_falls_short_fails_the_run(
    got: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Row(what=what, asked=4, got=one, unit="s") for what, one in (("first", got), ("last", 1.0))]
    assert verdict(rows) == code
    shown = capsys.readouterr().out
    assert all(str(row) in shown for row in rows)
