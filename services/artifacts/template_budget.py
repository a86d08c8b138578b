"""Charges what a chat template does, and offers the functions and filters whose cost is known.

Knows limits and values; knows nothing of how a template is parsed or which messages it gets.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import pass_context
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context

BUDGET = "render budget"
"""Where the budget lies among a template's variables; no template can spell a name with a space."""
MAX_ITEMS = 10_000


class TemplateFailure(Exception):
    """The template refused its input or broke on it; the message is the template's."""


class BudgetSpent(Exception):
    """The template took too long or made too much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateLimits:
    """What one rendering may take."""

    max_cpu_s: float = 0.4
    """Processor seconds of the rendering thread."""
    max_chars: int = 16 << 20
    """Characters written, captured blocks and macros included."""


class Budget:
    """What is left to one rendering."""

    def __init__(self, limits: TemplateLimits) -> None:
        self.max_chars = limits.max_chars
        self._chars_left = limits.max_chars
        self._max_cpu_s = limits.max_cpu_s
        self._end_s = time.thread_time() + limits.max_cpu_s

    def tick(self, num_chars: int = 0) -> None:
        """Charge one operation and what it wrote."""
        self._chars_left -= num_chars
        if self._chars_left < 0:
            raise BudgetSpent(f"it writes more than {self.max_chars} characters")
        if time.thread_time() > self._end_s:
            raise BudgetSpent(f"it takes more than {self._max_cpu_s} s")

    def check_size(self, num_chars: int) -> None:
        """Refuse a text larger than all that may be written."""
        if num_chars > self.max_chars:
            raise BudgetSpent(f"it makes a text of more than {self.max_chars} characters")

    def weigh(self, value: Any) -> None:
        """Charge a value by all it holds, so that no operation on it costs more than was charged."""
        self.tick()
        if isinstance(value, str):
            self.check_size(len(value))
        elif isinstance(value, Mapping):
            self.weigh(list(value.values()))
        elif isinstance(value, list | tuple):
            for item in value:
                self.weigh(item)


def budget_of(context: Context) -> Budget:
    """Return the budget of the rendering that runs."""
    budget = context.parent[BUDGET]
    assert isinstance(budget, Budget)
    return budget


@pass_context
def each(context: Context, values: Iterable[Any]) -> Iterator[Any]:
    budget = budget_of(context)
    for value in values:
        budget.tick()
        yield value


@pass_context
def written(context: Context, value: Any) -> str:
    budget = budget_of(context)
    if not isinstance(value, str):
        budget.weigh(value)
    text = str(value)
    budget.tick(len(text))
    return text


@pass_context
def ticked(context: Context, value: Any) -> Any:
    budget_of(context).tick()
    return value


@pass_context
def weighed(context: Context, value: Any) -> Any:
    budget_of(context).weigh(value)
    return value


def text_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that makes text of its input, charged by all that the input holds."""

    @pass_context
    def run(context: Context, value: Any, *arguments: Any) -> Any:
        budget_of(context).weigh(value)
        return function(value, *arguments)

    return run


@pass_context
def join(context: Context, values: Iterable[Any], separator: str = "", attribute: str | None = None) -> str:
    if attribute is not None:
        values = map(make_attrgetter(context.environment, attribute), values)
    texts = [str(weighed(context, value)) for value in values]
    budget_of(context).check_size(sum(map(len, texts)) + len(texts) * len(separator))
    return str(separator).join(texts)


@pass_context
def replace(context: Context, text: Any, old: str, new: str, count: int = -1) -> str:
    text = str(weighed(context, text))
    budget_of(context).check_size(len(text) + (text.count(old) + 1) * len(new))
    replaced: str = text.replace(old, new, count)
    return replaced


@pass_context
def indent_lines(context: Context, text: Any, width: int = 4, first: bool = False) -> str:
    check(isinstance(width, int) and width <= 16, "indents of more than 16")
    margin = "\n" + " " * width
    indented = replace(context, text, "\n", margin)
    return margin[1:] + indented if first else indented


@pass_context
def to_json(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    budget_of(context).weigh(value)
    check(indent is None or (isinstance(indent, int) and indent <= 16), "indents of more than 16")
    check(separators is None or max(map(len, separators)) <= 16, "separators of more than 16")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message: str) -> None:
    raise TemplateFailure(str(message))


def bounded_range(*arguments: int) -> range:
    values = range(*arguments)
    check(len(values) <= MAX_ITEMS, f"ranges of more than {MAX_ITEMS}")
    return values


def make_dict(*arguments: Any, **items: Any) -> dict[Any, Any]:
    return dict(*arguments, **items)


def check(is_fine: bool, what: str) -> None:
    if not is_fine:
        raise BudgetSpent(f"it asks for {what}")
