"""Runs a chat template, which is a program that came as data, inside limits.

Knows Jinja: what a template may call, how much processor time it may take and how much text it may make.
Knows nothing of messages or tokens. A limit holds whatever the template does: the parsed program is rewritten
so that every turn of a loop, filter, call and piece of output is charged to the render's budget.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from services.artifacts import template_budget as metered
from services.artifacts.errors import ArtifactError
from services.artifacts.template_budget import (
    BUDGET,
    MAX_ITEMS,
    Budget,
    TemplateFailure,
    TemplateLimits,
    budget_of,
    check,
)

_MAX_SOURCE_CHARS = 1 << 20
_LIST_FILTERS = (
    *("abs", "count", "d", "default", "dictsort", "first", "float", "int", "items", "last", "length", "list"),
    *(
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "reverse",
        "round",
        "select",
        "selectattr",
        "sort",
        "unique",
    ),
)
_TEXT_FILTERS = ("capitalize", "e", "escape", "lower", "safe", "string", "title", "trim", "upper")
_GROWING_METHODS = ("center", "expandtabs", "format_map", "ljust", "rjust", "translate", "zfill")
_FORMAT_WIDTH = re.compile(r"%[^a-zA-Z%]*[*\d]")
_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template's own code can raise."""


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant said, for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it as a plain set)

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = budget_of(__context)
        budget.tick()
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(owner, str):
            name = getattr(__obj, "__name__", "")
            check(name not in _GROWING_METHODS, f"the method {name}")
            if name == "join":
                return metered.join(__context, args[0], owner)
            if name == "replace":
                return metered.replace(__context, owner, *args, **kwargs)
            if name == "format":
                check(":" not in owner, "formats with a width")
                budget.weigh([*args, *kwargs.values()])
                longest = max((len(str(value)) for value in [*args, *kwargs.values()]), default=0)
                budget.check_size(len(owner) + owner.count("{") * longest)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = budget_of(context)
        budget.tick()
        if operator == "**":
            check(abs(left) <= 1 << 20 and abs(right) <= 64, "large powers")
        elif operator == "*":
            numbers = [side for side in (left, right) if isinstance(side, int)]
            check(all(number.bit_length() <= 128 for number in numbers), "large products")
            for side in (left, right):
                if isinstance(side, str | list | tuple) and numbers:
                    self._check_length(budget, side, len(side) * max(numbers))
        elif operator == "%" and isinstance(left, str):
            budget.weigh(right)
            check(_FORMAT_WIDTH.search(left) is None, "formats with a width")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, str | list | tuple):
            self._check_length(budget, result, len(result))
        return result

    @staticmethod
    def _check_length(budget: Budget, kind: Any, length: int) -> None:
        if isinstance(kind, str):
            budget.check_size(length)
        else:
            check(length <= MAX_ITEMS, f"lists of more than {MAX_ITEMS}")


class _Metering(NodeTransformer):
    """Rewrites a parsed template so that all it does is charged."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(cast(nodes.Expr, node.iter), "each")
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [
            _filtered(nodes.Const(part.data) if isinstance(part, nodes.TemplateData) else part, "written")
            for part in node.nodes
        ]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_filtered(part, "weighed") for part in node.nodes]
        return _filtered(node, "weighed")

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        if node.node is not None:
            node.node = _filtered(node.node, "ticked")
        return node


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, f"metered {name}", [], [], None, None, lineno=node.lineno)


class SandboxedTemplate:
    """One compiled template. Rendering is thread-safe and leaves nothing behind."""

    def __init__(self, source: str, *, limits: TemplateLimits, now: Callable[[], datetime]) -> None:
        """Compile `source`.

        Args:
            now: Clock for templates that print the date.

        Raises:
            ArtifactError: Not a template, too long, or it uses what we do not offer.
        """
        if len(source) > _MAX_SOURCE_CHARS:
            raise ArtifactError(f"the chat template is longer than {_MAX_SOURCE_CHARS} characters")
        self._limits = limits
        environment = _environment(now)
        try:
            tree = environment.parse(source)
            self.constants = frozenset(
                c.value for c in tree.find_all(nodes.Const) if isinstance(c.value, str)
            )
            """Texts that the template's own code compares with or writes."""
            charged = _Metering().visit(tree)
            charged.set_environment(environment)
            code = environment.compile(charged, "chat template", "chat template")
        except (jinja2.TemplateError, RecursionError, MemoryError) as exc:
            raise ArtifactError(f"the chat template does not compile ({exc}); use another template") from exc
        self._template = jinja2.Template.from_code(environment, code, environment.make_globals(None))

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return the template's output.

        Raises:
            TemplateFailure: It refused its input or broke on it.
            BudgetSpent: It went over its limits.
        """
        try:
            return self._template.render({**variables, BUDGET: Budget(self._limits)})
        except _FAILURES as exc:
            raise TemplateFailure(str(exc) or type(exc).__name__) from exc


def _environment(now: Callable[[], datetime]) -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols], cache_size=0
    )
    builtin = environment.filters
    environment.filters = {
        **{name: builtin[name] for name in _LIST_FILTERS},
        **{name: metered.text_filter(builtin[name]) for name in _TEXT_FILTERS},
        "join": metered.join,
        "replace": metered.replace,
        "indent": metered.indent_lines,
        "tojson": metered.to_json,
        "metered each": metered.each,
        "metered ticked": metered.ticked,
        "metered weighed": metered.weighed,
        "metered written": metered.written,
    }

    def strftime_now(text: str) -> str:
        check(len(text) <= 64 and not re.search(r"\d", text), "an odd date format")
        return now().strftime(text)

    environment.globals = {
        "dict": metered.make_dict,
        "namespace": Namespace,
        "raise_exception": metered.raise_exception,
        "range": metered.bounded_range,
        "strftime_now": strftime_now,
    }
    return environment
