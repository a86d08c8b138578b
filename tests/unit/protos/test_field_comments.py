"""Every field that somebody else reads says what it holds: a comment in front of it, or on its line."""

import re
from pathlib import Path

import pytest

PROTOS = Path(__file__).resolve().parents[3] / "protos"
DESCRIBED = ("admin", "gateway", "kvmanager", "scheduler", "types", "worker")
"""Packages of which no field lacks a comment."""
FIELD = re.compile(r"\s+(?:optional |repeated )?(?:map<[^>]+>|[\w.]+) (?P<name>\w+) = \d+;(?P<rest>.*)")


def bare_fields(text: str) -> list[str]:
    """Return the fields of messages without a comment, as Message.field."""
    found, block, before = [], "", ""
    for line in text.splitlines():
        if opened := re.match(r"(message|enum|service) \w+", line):
            block = opened[0]
        field = FIELD.fullmatch(line)
        if field and block.startswith("message ") and "//" not in before + field["rest"]:
            found.append(f"{block.removeprefix('message ')}.{field['name']}")
        before = line if line.lstrip().startswith("//") else ""
    return found


@pytest.mark.parametrize("package", DESCRIBED)
def test_no_field_lacks_a_comment(package: str) -> None:
    (path,) = (PROTOS / package).rglob("*.proto")
    assert bare_fields(path.read_text()) == []


def test_a_bare_field_is_found() -> None:
    """The control."""
    text = """
message A {
  // Said.
  string said = 1;
  string bare = 2;
  map<uint32, float> bare_map = 3;
  oneof kind {
    // Said.
    protos.types.v1.Usage usage = 4;
    A again = 5;
  }
}
enum B {
  B_UNSPECIFIED = 0;
}
"""
    assert bare_fields(text) == ["A.bare", "A.bare_map", "A.again"]
