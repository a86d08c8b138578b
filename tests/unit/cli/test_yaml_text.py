"""YAML is read as plain values of bounded size, whoever wrote it."""

import pytest

from services.chassis.fatal import ConfigError
from services.commands.tenant_file import with_fields
from services.commands.yaml_text import MAX_NODES, from_yaml


def read(text: str) -> object:
    return from_yaml(text, "the file")


def powers(level: str) -> str:
    """Return nine values of the form `level`, each of which stands for nine of the one before."""
    lines = ["a0: &a0 " + level.format(", ".join(["x"] * 9))]
    lines += [f"a{n}: &a{n} " + level.format(", ".join([f"*a{n - 1}"] * 9)) for n in range(1, 9)]
    return "\n".join(lines)


def test_shared_values_and_merges_are_taken() -> None:
    text = "usual: &usual {a: 1, b: 2}\nteams: [{<<: *usual, b: 3}, {<<: *usual}, *usual]"
    assert read(text) == {
        "usual": {"a": 1, "b": 2},
        "teams": [{"a": 1, "b": 3}, {"a": 1, "b": 2}, {"a": 1, "b": 2}],
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (powers("[{}]"), f"over {MAX_NODES} values"),
        ("a0: &a0 {x: 1}\n" + powers("{{<<: [{}]}}").partition("\n")[2], f"over {MAX_NODES} values"),
        ("a: &a [*a]", "a value inside itself"),
        ("a: &a {b: *a}", "a value inside itself"),
        ("tenants: []\ntenants: []", "found 'tenants' twice"),
        ("- {id: a, weight: 1, id: b}", "found 'id' twice"),
        ("[" * 100_000, "nested too deeply"),
        ("{a: " * 100_000, "nested too deeply"),
        ("born: 2026-99-99", "month must be in 1..12"),
        ("n: " + "9" * 5000, "digits"),
        ("!!python/object/apply:os.system [true]", "could not determine a constructor"),
        ("a: [", "while parsing"),
        ("a: \x00", "special characters are not allowed"),
    ],
)
def test_what_is_hostile_is_refused_in_a_line(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"^the file: (.|\n)*{why}"):
        read(text)


def test_a_field_set_on_the_command_line_is_read_alike() -> None:
    assert with_fields({"id": "a"}, ["limits.x={y: 1}"]) == {"id": "a", "limits": {"x": {"y": 1}}}
    with pytest.raises(ConfigError, match="the value of weight is no YAML: found 'a' twice"):
        with_fields({}, ["weight={a: 1, a: 2}"])
