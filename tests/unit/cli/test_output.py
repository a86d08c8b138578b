"""What a model says is shown on a terminal and never obeyed by it; a pipe gets it as it is."""

import io
import sys

import pytest

from services.commands.output import write_text

SAID = "a\x1b]0;owned\x07\x9b2J\tb\r\n\x7f\x00 模 👩‍👧"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("out", "shown"),
    [(Terminal(), "a␛]0;owned␇\ufffd2J\tb␍\n␡␀ 模 👩‍👧"), (io.StringIO(), SAID)],
    ids=["terminal", "pipe"],
)
def test_only_a_pipe_gets_control_characters(
    monkeypatch: pytest.MonkeyPatch, out: io.StringIO, shown: str
) -> None:
    monkeypatch.setattr(sys, "stdout", out)
    write_text(SAID)
    assert out.getvalue() == shown
