"""Says what to change so that a model fits into memory, the smallest change first.

Knows what each change takes from callers and tries them on `memory_plan`; knows nothing of how one is made.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from math import log2
from typing import TypeVar

from services.domain.kv_layout import KvFormat
from worker.memory_plan import (
    MemoryPlan,
    Setup,
    WeightStorage,
    Workload,
    bytes_of_weights,
    page_bytes_of,
    plan_memory,
    position_bytes,
    room,
)
from worker.plan.op import Plan

_HALF_AS_PRECISE = 0.1
"""What half as many bits of a number count as, beside the share of requests or context that is lost."""

Format = TypeVar("Format", WeightStorage, KvFormat)


def changes_that_fit(plan: Plan, setup: Setup, budget_bytes: int) -> list[MemoryPlan]:
    """Return what to change so that it fits, the smallest change first; empty when nothing helps.

    Each is the least step in one of KV format, weight format, requests at once and context. Less precise
    numbers take little from callers, and what they take can be measured, so that they come before most other
    changes. Only where no single one is enough, one plan combines them, formats before requests before
    context.

    Worked number: KV in int8 instead of bf16 counts 0.1; 31 requests instead of 32 count 0.03 and come before
    it, 24 count 0.25 and come behind it.
    """
    single = [found for found in _single_changes(plan, setup, budget_bytes) if found and found.fits]
    return sorted(single, key=lambda found: _loss(setup, found.setup)) or _combined(plan, setup, budget_bytes)


def _loss(now: Setup, then: Setup) -> float:
    """Return how much `then` takes from callers: 0 is nothing, 1 all requests or all context."""
    halvings = log2(now.weights.bits / then.weights.bits) + log2(now.kv.item_bytes / then.kv.item_bytes)
    requests = 1 - then.workload.concurrency / now.workload.concurrency
    context = 1 - then.workload.context_tokens / now.workload.context_tokens
    return _HALF_AS_PRECISE * halvings + requests + context


def _single_changes(plan: Plan, setup: Setup, budget: int) -> Iterator[MemoryPlan | None]:
    yield _first_that_fits(plan, (replace(setup, kv=kv) for kv in _narrower(setup.kv)), budget)
    yield _first_that_fits(plan, (_stored_as(setup, w) for w in _narrower(setup.weights)), budget)
    yield _with_fewer_requests(plan, setup, budget)
    yield _with_less_context(plan, setup, budget)


def _combined(plan: Plan, setup: Setup, budget: int) -> list[MemoryPlan]:
    formats = [
        replace(_stored_as(setup, weights), kv=kv)
        for kv, weights in product(
            (setup.kv, *_narrower(setup.kv)), (setup.weights, *_narrower(setup.weights))
        )
    ]
    formats.sort(key=lambda one: bytes_of_weights(plan, one) + page_bytes_of(plan, one.kv, 16), reverse=True)
    smallest = formats[-1]
    shortest = replace(
        smallest, workload=replace(smallest.workload, context_tokens=_shortest(setup.workload))
    )
    found = (
        _first_that_fits(plan, formats, budget)
        or _with_fewer_requests(plan, smallest, budget)
        or _with_fewer_requests(plan, shortest, budget)
    )
    return [found] if found else []


def _with_fewer_requests(plan: Plan, setup: Setup, budget: int) -> MemoryPlan | None:
    fits = plan_memory(plan, setup, budget).num_sequences
    if not fits:
        return None
    fewer = replace(setup.workload, concurrency=min(fits, setup.workload.concurrency))
    return plan_memory(plan, replace(setup, workload=fewer), budget)


def _with_less_context(plan: Plan, setup: Setup, budget: int) -> MemoryPlan | None:
    """Shorten the context as far as one sequence's pages must; it never goes under prompt + output."""
    load = setup.workload
    now = plan_memory(plan, setup, budget)
    # A page of tokens takes its KV and its rotations.
    rotations = load.page_size * position_bytes(plan)
    pages = (room(now) + now.table_bytes) // (page_bytes_of(plan, setup.kv, load.page_size) + rotations)
    context = min(load.context_tokens, pages * load.page_size)
    if context < _shortest(load):
        return None
    return plan_memory(plan, replace(setup, workload=replace(load, context_tokens=context)), budget)


def _stored_as(setup: Setup, weights: WeightStorage) -> Setup:
    return setup if weights is setup.weights else replace(setup, weights=weights, shipped_bytes=None)


def _shortest(load: Workload) -> int:
    return load.prompt_tokens + load.output_tokens


def _first_that_fits(plan: Plan, setups: Iterable[Setup], budget: int) -> MemoryPlan | None:
    plans = (plan_memory(plan, setup, budget) for setup in setups)
    return next((found for found in plans if found.fits), None)


def _narrower(now: Format) -> list[Format]:
    """Return the formats that take less than `now`, widest first."""
    formats = list(type(now))
    return formats[formats.index(now) + 1 :]
