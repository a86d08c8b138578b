"""Collects what one step says, and the cumulative counts behind it, into `StepOutputs`.

Knows nothing of why things happened: the step scheduler tells it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.domain.ids import RequestKey, TenantId
from services.domain.slices import SlicesInForce
from worker.engine.batch import TopLogprobs
from worker.engine.decode_rows import DecodeRows
from worker.engine.outputs import (
    Ended,
    Event,
    PromptScored,
    Refused,
    Started,
    StepOutputs,
    StepStats,
    TenantUse,
)
from worker.engine.page_pool import PagePool
from worker.engine.request import Request
from worker.engine.sequence import Sequence
from worker.engine.step_tokens import StepTokens


@dataclass(slots=True)
class _Use:
    uncached_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    page_seconds: float = 0.0


class StepReport:
    """Outputs of the step that is being made."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._tokens = StepTokens()
        self._events: list[Event] = []
        self._started: list[RequestKey] = []
        self._ended: list[Ended | Refused] = []
        self._use: defaultdict[TenantId, _Use] = defaultdict(_Use)
        self._used_now: set[TenantId] = set()
        self._failures_told = 0
        self._slices: SlicesInForce | None = None
        self._slices_told: object = (0, [], {})
        self.prefix_tokens: Counter[str] = Counter()
        self.unknown_cancels = 0

    @property
    def has_events(self) -> bool:
        """There is more to tell than tokens."""
        return bool(self._events)

    @property
    def is_empty(self) -> bool:
        return not (self._tokens.handles or self._events or self._slices)

    def tell(self, event: Event) -> None:
        """Add an event."""
        self._events.append(event)
        if isinstance(event, Started):
            self._started.append(event.key)
        elif isinstance(event, Ended | Refused):
            self._ended.append(event)
        if isinstance(event, Ended):
            self._use_of(event.tenant).page_seconds += event.page_seconds

    def first_start(self, request: Request, cached_tokens: int) -> None:
        """Tell the first start of a request and count what its prompt found in the cache."""
        self.tell(Started(request.handle, request.key, cached_tokens))
        self.prefix_tokens["hit"] += cached_tokens
        self.prefix_tokens["miss"] += len(request.prompt_ids) - cached_tokens
        self._use_of(request.tenant).cached_tokens += cached_tokens

    def prompt_computed(self, tenant: TenantId, num_tokens: int) -> None:
        """Count prompt tokens computed for the first time here."""
        if num_tokens > 0:
            self._use_of(tenant).uncached_tokens += num_tokens

    def token(self, sequence: Sequence, logprob: float | None, top: TopLogprobs | None) -> None:
        """Add the token that a sequence has just been given: the last of its output ids."""
        request, position = sequence.request, len(sequence.output_ids) - 1
        index = self._tokens.add(request.handle, sequence.choice, position, sequence.output_ids[position:])
        if logprob is not None:
            self._tokens.annotate(index, logprob, top)
        self._use_of(request.tenant).output_tokens += 1

    def decoded(self, decodes: DecodeRows, asked: Iterable[tuple[int, float, TopLogprobs | None]]) -> None:
        """Add the tokens that the generating sequences have just been given.

        Args:
            asked: Rows that asked for it, with the log-probability and alternatives of their token.
        """
        tokens, index = self._tokens, len(self._tokens.token_ids)
        tokens.handles += decodes.handles
        tokens.choices += decodes.choices
        tokens.first_positions += decodes.output_positions.tolist()
        tokens.counts += [1] * len(decodes)
        tokens.token_ids += decodes.ids.tolist()
        for row, logprob, top in asked:
            tokens.annotate(index + row, logprob, top)
        for tenant, num_tokens in decodes.num_of.items():
            self._use_of(tenant).output_tokens += num_tokens

    def repeat(self, sequence: Sequence, first_position: int) -> None:
        """Give the tokens from `first_position` on once more, to somebody who has attached."""
        token_ids = sequence.output_ids[first_position:]
        if not token_ids:
            return
        handle, choice = sequence.request.handle, sequence.choice
        first = self._tokens.add(handle, choice, first_position, token_ids)
        for index, logprob in enumerate((sequence.logprobs or ())[first_position:]):
            if logprob is not None:
                top = sequence.top[first_position + index] if sequence.top else None
                self._tokens.annotate(first + index, logprob, top)

    def prompt_scored(self, sequence: Sequence, first_position: int) -> None:
        """Tell all scores of the prompt's tokens from `first_position` on, if there are any."""
        scores = sequence.scores
        if scores is not None and first_position <= scores.num_scored:
            index = first_position - 1
            handle = sequence.request.handle
            self.tell(PromptScored(handle, first_position, scores.logprobs[index:], scores.tops[index:]))

    def slices(self, waiting: Mapping[TenantId, tuple[int, float]], now: float) -> None:
        """Tell what is kept to of the slices, if that or what waits for a slice is not what was told last."""
        slices = self._pool.slices
        state = (slices.version, [slices.bound_of(tenant) for tenant in slices.tenants], waiting)
        if state != self._slices_told:
            self._slices_told = state
            self._slices = slices.in_force(self._pool.held_by, waiting, now)

    def step_counters(self) -> tuple[dict[str, int], dict[str, int], int, int]:
        """Return this step's page transitions, prefix tokens, allocation failures and unknown cancels."""
        failures = self._pool.allocation_failures - self._failures_told
        self._failures_told = self._pool.allocation_failures
        counters = (dict(self._pool.transitions), dict(self.prefix_tokens), failures, self.unknown_cancels)
        self._pool.transitions.clear()
        self.prefix_tokens.clear()
        self.unknown_cancels = 0
        return counters

    def close(self, stats: StepStats) -> StepOutputs:
        """Return the step's outputs and begin the next one's."""
        outputs = StepOutputs(
            tokens=self._tokens.whole(),
            events=tuple(self._events),
            kv_events=tuple(self._pool.drain_events()),
            started=tuple(self._started),
            ended=tuple(self._ended),
            tenant_use={tenant: _frozen(self._use[tenant]) for tenant in self._used_now},
            tenant_pages=self._pool.drain_changed_tenants(),
            slices=self._slices,
            stats=stats,
        )
        self._tokens = StepTokens()
        self._events, self._started, self._ended = [], [], []
        self._used_now.clear()
        self._slices = None
        return outputs

    def _use_of(self, tenant: TenantId) -> _Use:
        self._used_now.add(tenant)
        return self._use[tenant]


def _frozen(use: _Use) -> TenantUse:
    return TenantUse(
        uncached_tokens=use.uncached_tokens,
        cached_tokens=use.cached_tokens,
        output_tokens=use.output_tokens,
        page_seconds=use.page_seconds,
    )
