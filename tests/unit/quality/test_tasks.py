"""Checks say right to right answers and wrong to wrong ones; a model's code is confined."""

import time
from collections import Counter

import pytest

from worker.quality.code_check import code_in, passes
from worker.quality.tasks import Task, TaskKind, all_tasks

TASKS = all_tasks()


def find(kind: TaskKind, words: str) -> Task:
    return next(task for task in TASKS if task.kind is kind and words in task.question)


def test_there_are_enough_of_every_kind_and_they_never_change() -> None:
    counts = Counter(task.kind for task in TASKS)
    assert set(counts) == set(TaskKind)
    # A kind that a baseline cannot do leaves 200 of the others.
    assert sum(counts.values()) - max(counts.values()) >= 200
    assert [task.question for task in TASKS] == [task.question for task in all_tasks()]


@pytest.mark.parametrize(
    ("kind", "words", "right", "wrong"),
    [
        (
            TaskKind.FACTS,
            "capital of France",
            "The capital is Paris.",
            "The capital is Lyon.\nParis is nice.",
        ),
        (TaskKind.FACTS, "Fe?", "Iron", "ironic"),
        (TaskKind.CHINESE, "中国的首都", "北京", "上海"),
        (
            TaskKind.CODE,
            "add(a, b)",
            "```python\ndef add(a, b):\n    return a + b\n```",
            "def add(a, b): return a",
        ),
        (TaskKind.CODE, "factorial", "def factorial(n):\n    return n * factorial(n-1) if n else 1", ""),
    ],
)
def test_right_and_wrong_answers(kind: TaskKind, words: str, right: str, wrong: str) -> None:
    task = find(kind, words)
    assert task.is_right(right)
    assert not task.is_right(wrong)


def test_arithmetic_takes_the_last_number_of_the_first_line_that_has_one() -> None:
    task = next(task for task in TASKS if task.kind is TaskKind.ARITHMETIC and " + " in task.question)
    a, _, b = task.question.removeprefix("What is ").partition("?")[0].partition(" + ")
    total = int(a) + int(b)
    assert task.is_right(f"{a} + {b} = {total}")
    assert task.is_right(f"Sure!\n{total}.")
    assert not task.is_right(f"{total} plus {total + 1}")
    assert not task.is_right("none")


def test_extraction_wants_the_values_not_the_words_around() -> None:
    task = next(task for task in TASKS if task.kind is TaskKind.EXTRACTION)
    name, _, rest = task.question.partition(" is ")
    age, _, tail = rest.partition(" years")
    city = tail.partition("lives in ")[2].partition(".")[0]
    answer = f'{{"name": "{name}", "age": {age}, "city": "{city}"}}'
    assert task.is_right(f"Here it is:\n```json\n{answer}\n```")
    assert not task.is_right(answer.replace(city, "Nowhere"))
    assert not task.is_right("{" + answer)


@pytest.mark.parametrize(
    "code",
    [
        "import os\ndef f(): return 1",
        "from socket import socket\ndef f(): return 1",
        "def f(): return open('/etc/passwd')",
        "def f(): return ().__class__",
        "def f(): return eval('1')",
        "def f(:",
    ],
)
def test_code_that_reaches_out_is_wrong_without_being_run(code: str) -> None:
    assert not passes(code, [("1", "1")])


def test_code_that_never_ends_or_eats_memory_is_stopped() -> None:
    began = time.monotonic()
    assert not passes("while True:\n    pass", [("1", "1")])
    assert not passes("x = [0] * (1 << 40)", [("1", "1")])
    assert time.monotonic() - began < 60  # Not a speed: that it ends at all.


def test_code_is_found_in_an_answer() -> None:
    assert code_in("Sure:\n```python\nx = 1\n```\nDone") == "x = 1\n"
    assert code_in("Here:\ndef f():\n    pass") == "def f():\n    pass"
