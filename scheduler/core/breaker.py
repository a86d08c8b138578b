"""Whether one worker is given requests: a circuit breaker over its errors, its stalls and its deaths.

Closed, it watches the last outcomes; open, it lets nothing through for a time that doubles; half open, it
lets one request through at a time, and that one's outcome closes it or opens it again. Kept by the worker's
name, so that a worker that dies at every start does not begin anew with each boot.

Knows outcomes and times it is given; knows no request, no queue, and not how a worker is told.

Source: Nygard, "Release It!", 2nd edition 2018, "Circuit Breaker"; Envoy's outlier detection for the share
over a least number of outcomes.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum, StrEnum

from services.domain.ids import RequestKey


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRules:
    """When a breaker opens, and for how long.

    Worked number with the defaults: of the last 20 outcomes within a minute 10 failed: it opens for 5 s, then
    for 10 s if the request that tries it fails, at most for 2 minutes.
    """

    min_failures: int = 8
    """Fewer failures never open it; 0 turns every breaker off, the one over deaths and stalls too."""
    max_share: float = 0.5
    """It opens when this share of the outcomes failed."""
    num_outcomes: int = 20
    """The outcomes looked at, the newest."""
    window_s: float = 60.0
    """Older outcomes are not looked at."""
    max_deaths: int = 3
    """Boots that end by death within `deaths_s`, at which it opens."""
    deaths_s: float = 300.0
    stall_s: float = 10.0
    """Seconds without a finished step although there is work, at which it opens."""
    open_s: float = 5.0
    """Seconds for which it opens at first."""
    max_open_s: float = 120.0
    """It never opens for longer; closed for so long, it begins with `open_s` again."""


class State(Enum):
    """What a breaker lets through."""

    CLOSED = 1
    OPEN = 2
    HALF_OPEN = 3


class Reason(StrEnum):
    """Why it opened."""

    ERRORS = "errors"
    DEATHS = "deaths"
    STALL = "stall"


@dataclass(frozen=True, slots=True)
class _Outcome:
    at: float
    failed_prompt: bytes | None
    """None: no fault of the worker."""


class Breaker:
    """The breaker of one worker."""

    def __init__(self, rules: BreakerRules) -> None:
        self._rules = rules
        self.state = State.CLOSED
        self.reason: Reason | None = None
        """Of the last opening."""
        self.until = 0.0
        """When an open one becomes half open."""
        self.num_opened = 0
        self.probe: RequestKey | None = None
        """The request that tries a half-open one."""
        self._outcomes: deque[_Outcome] = deque(maxlen=rules.num_outcomes)
        self._deaths: deque[float] = deque(maxlen=rules.max_deaths)
        self._open_s = rules.open_s
        self._closed_at = float("-inf")

    @property
    def lets_through(self) -> bool:
        """Whether a request may be placed now."""
        return self.state is State.CLOSED or (self.state is State.HALF_OPEN and self.probe is None)

    def placed(self, key: RequestKey) -> None:
        """A request was placed."""
        if self.state is State.HALF_OPEN:
            assert self.probe is None, "one request at a time tries a half-open breaker"
            self.probe = key

    def ended_well(self, key: RequestKey, now: float) -> None:
        """A request had a good end. While not closed only that of the probe counts."""
        self.ended(now)
        if self.state is State.HALF_OPEN and key == self.probe:
            self.state, self.probe, self._closed_at = State.CLOSED, None, now
            self._outcomes.clear()

    def ended(self, now: float) -> None:
        """A request ended by no fault of the worker: cancelled, out of time, at an end of its own."""
        if self.state is State.CLOSED:
            self._outcomes.append(_Outcome(now, None))

    def failed(self, key: RequestKey, prompt: bytes, now: float) -> None:
        """A request ended by a fault of the worker. One prompt that fails again and again counts once."""
        if self.state is State.HALF_OPEN and key == self.probe:
            self._open(Reason.ERRORS, now)
        if self.state is not State.CLOSED:
            return
        while self._outcomes and self._outcomes[0].at <= now - self._rules.window_s:
            self._outcomes.popleft()
        if prompt and any(one.failed_prompt == prompt for one in self._outcomes):
            return
        self._outcomes.append(_Outcome(now, prompt))
        failures = sum(one.failed_prompt is not None for one in self._outcomes)
        rules = self._rules
        if rules.min_failures and failures >= max(rules.min_failures, rules.max_share * len(self._outcomes)):
            self._open(Reason.ERRORS, now)

    def died(self, now: float) -> None:
        """A boot of the worker ended, and was not told to."""
        self._outcomes.clear()
        self._deaths.append(now)
        if self.state is State.HALF_OPEN and self.probe is not None:
            self._open(Reason.DEATHS, now)
        elif self.state is State.CLOSED and self._rules.min_failures:
            recent = sum(at > now - self._rules.deaths_s for at in self._deaths)
            if recent >= self._rules.max_deaths:
                self._open(Reason.DEATHS, now)

    def lives(self) -> None:
        """The boot that was thought dead has come back."""
        if self._deaths:
            self._deaths.pop()

    def released(self) -> None:
        """The probe left without an outcome: the next request may try."""
        self.probe = None

    def stuck(self, stuck_s: float, now: float) -> None:
        """The worker said for how long it has not finished a step although it has work; 0 is not at all."""
        if stuck_s < self._rules.stall_s or not self._rules.min_failures:
            return
        if self.state is State.OPEN and self.reason is Reason.STALL:
            self.until = max(self.until, now + self._rules.open_s)
        elif self.state is not State.OPEN:
            self._open(Reason.STALL, now)

    def tick(self, now: float) -> None:
        """Let one request try when the time is up."""
        if self.state is State.OPEN and self.until <= now:
            self.state, self.probe = State.HALF_OPEN, None

    def _open(self, reason: Reason, now: float) -> None:
        rules = self._rules
        if self.state is State.HALF_OPEN or now - self._closed_at < rules.max_open_s:
            self._open_s = min(rules.max_open_s, 2 * self._open_s)
        else:
            self._open_s = rules.open_s
        self.state, self.reason, self.probe = State.OPEN, reason, None
        self.until = now + self._open_s
        self.num_opened += 1
        self._outcomes.clear()
