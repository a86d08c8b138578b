"""Closed-loop load through an OpenAI-compatible HTTP door, and what it showed.

Knows completions with token ids and exact lengths; knows nothing of which server answers.
"""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

LIMIT_S = 900.0
IDS = (1000, 40_000)
"""Ids that prompts are drawn from: ordinary words of the vocabulary."""


class LoadFailed(Exception):
    """A server did not do what a cell asks; the text says what it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One kind of load."""

    name: str
    prompt_tokens: tuple[int, int]
    """Least and most; drawn evenly."""
    output_tokens: int
    concurrency: int
    requests: int
    shared_tokens: int = 0
    """Tokens at the front of every prompt that are the same, and were sent once before."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One request, in seconds of one clock."""

    began: float
    first: float
    ended: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a cell gave. The first burst (one request for each place) is not part of the steady state."""

    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    burst_ttft_p50_ms: float
    requests: int


def prompts(cell: Cell, seed: int) -> list[list[int]]:
    """Return one list of ids for each request; the same seed gives the same to every server."""
    draw = random.Random(seed)
    shared = [draw.randint(*IDS) for _ in range(cell.shared_tokens)]
    low, high = cell.prompt_tokens
    lengths = [draw.randint(low, high) - cell.shared_tokens for _ in range(cell.requests)]
    return [shared + [draw.randint(*IDS) for _ in range(length)] for length in lengths]


async def run(base_url: str, model: str, cell: Cell, seed: int) -> Figures:
    """Send a cell's requests with `concurrency` at once, and reduce what came.

    Raises:
        LoadFailed: A request failed or gave another number of tokens than asked for.
    """
    return reduce(await _send_all(base_url, model, cell, prompts(cell, seed)), cell.concurrency)


async def _send_all(base_url: str, model: str, cell: Cell, todo: Sequence[list[int]]) -> list[Sent]:
    # A connection for each request: some servers close one after a number of them, which is no failure.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=base_url, timeout=LIMIT_S, limits=limits) as client:
        if cell.shared_tokens:
            await _send(client, model, todo[0][: cell.shared_tokens + 1], 1)
        queue = iter(todo)
        sent: list[Sent] = []

        async def place() -> None:
            for ids in queue:
                sent.append(await _send(client, model, ids, cell.output_tokens))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(cell.concurrency):
                    group.create_task(place())
        except ExceptionGroup as failed:
            # The first says why; the others follow from it, or say the same.
            raise failed.exceptions[0] from None
    return sent


def reduce(sent: Sequence[Sent], concurrency: int) -> Figures:
    """Return the figures of the steady state: from the end of the burst until the last request began.

    A request counts by the share of its tokens that fell into that window, prompt tokens at its first token.
    """
    order = sorted(sent, key=lambda one: one.began)
    burst, later = order[:concurrency], order[concurrency:] or order
    opened, closed = max(one.first for one in burst), max(one.began for one in later)
    if closed <= opened:
        opened, closed = order[0].began, max(one.ended for one in order)
    output = total = 0.0
    for one in order:
        inside = max(0.0, min(one.ended, closed) - max(one.first, opened))
        made = one.output_tokens * inside / max(one.ended - one.first, 1e-9)
        output += made
        total += made + (one.prompt_tokens if opened < one.first <= closed else 0)
    waits = sorted(one.first - one.began for one in later)
    return Figures(
        output_tokens_per_s=output / (closed - opened),
        total_tokens_per_s=total / (closed - opened),
        ttft_p50_ms=statistics.median(waits) * 1000,
        ttft_p99_ms=waits[min(len(waits) - 1, int(len(waits) * 0.99))] * 1000,
        burst_ttft_p50_ms=statistics.median(one.first - one.began for one in burst) * 1000,
        requests=len(sent),
    )


async def _send(client: httpx.AsyncClient, model: str, ids: list[int], max_tokens: int) -> Sent:
    body = {
        "model": model,
        "prompt": ids,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began, first, usage = time.perf_counter(), None, None
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                raise LoadFailed(f"{response.status_code}: {(await response.aread()).decode()[:500]}")
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk: Mapping[str, object] = json.loads(line[6:])
                if first is None and chunk.get("choices"):
                    first = time.perf_counter()
                usage = chunk.get("usage") or usage
    except httpx.HTTPError as exc:
        raise LoadFailed(f"{type(exc).__name__} {exc}".strip()) from exc
    ended = time.perf_counter()
    made = usage["completion_tokens"] if isinstance(usage, dict) else None
    if first is None or made != max_tokens:
        raise LoadFailed(f"asked for {max_tokens} tokens, got {made}")
    return Sent(began, first, ended, len(ids), max_tokens)
