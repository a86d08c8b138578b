"""docs/known-failures.md and the markers in the tests say the same."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "known-failures.md"
ROW = re.compile(r"^\| (B\d{3}) \| ([^|]+) \| (tested|in part|later) \| ([^|]+) \|$")
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


@dataclass(frozen=True)
class Case:
    """One line of the page."""

    id: str
    state: str
    tests: tuple[tuple[str, str], ...]
    why: str
    """What stands beside the tests."""


def cases() -> list[Case]:
    found = []
    for line in PAGE.read_text().splitlines():
        if line.startswith("| B"):
            row = ROW.match(line)
            assert row is not None, line
            case_id, _, state, cell = row.groups()
            tests = tuple((path, name) for path, name in TEST.findall(cell))
            found.append(Case(case_id, state, tests, TEST.sub("", cell).replace("<br>", "").strip()))
    return found


def ids_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.failure":
            for argument in decorator.args:
                assert isinstance(argument, ast.Constant)
                yield str(argument.value)


@pytest.fixture(scope="module")
def marked() -> dict[str, set[tuple[str, str]]]:
    """Id -> (file below tests/, function)."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for case_id in ids_of(node):
                    found[case_id].add((str(path.relative_to(TESTS)), node.name))
    return dict(found)


def test_the_page_holds_each_case_once_in_order() -> None:
    ids = [case.id for case in cases()]
    assert len(ids) > 100
    assert ids == sorted(set(ids))


def test_what_is_called_tested_is_marked_and_the_reverse(marked: dict[str, set[tuple[str, str]]]) -> None:
    assert {case.id for case in cases() if case.state != "later"} == set(marked)


def test_the_tests_named_exist_and_carry_the_id(marked: dict[str, set[tuple[str, str]]]) -> None:
    for case in cases():
        assert bool(case.tests) == (case.state != "later"), case.id
        assert set(case.tests) <= marked.get(case.id, set()), case.id


def test_what_is_not_wholly_tested_says_why() -> None:
    for case in cases():
        assert (len(case.why.split()) >= 3) == (case.state != "tested"), case.id
