"""Can a tenant tell by the time to its first token what another one has asked?

Each round A asks a prompt that nobody asked before; then B asks that prompt and one that nobody asked, in
random order, and notes the time to the first token of both. An attacker tells them apart no better than by
chance if the area under the curve (AUC) is 0.5. The control is a gateway that salts no tenant's blocks: there
the cache must show. Real processes with a sim worker, whose prefill takes time for each token that is not
cached. What may be told by fields instead of times is `tests/e2e/test_side_channel.py`'s.
"""

import math
import random
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.suite import suite
from bench.tenants.check import Outcome
from bench.tenants.table import Row, check_row
from services.client import AsyncClient, Delta, Finished, Receipt

MODEL = "smollm2-135m-instruct"
NUM_TOKENS = 256
KEYS = {"a": "side-channel-key-a", "b": "side-channel-key-b"}
CONFIG = f"""
[worker]
sim_prefill_tokens_per_s = 20000.0
sim_step_ms = 1.0
[gateway]
server_key = "only of this measurement"
redis_limit_ms = 5000
[[tenants]]
id = "a"
key = "{KEYS["a"]}"
[[tenants]]
id = "b"
key = "{KEYS["b"]}"
"""

UNSALTED = """
import sys
if "gateway" in sys.orig_argv:
    from gateway.core.auth import Authenticator
    Authenticator.salt_of = lambda self, tenant, cache_salt: b""
"""
"""What Python runs first in every process of the control: tenants share what is cached."""
MOST_SIGMA = 3.0


@dataclass(slots=True)
class Guesses:
    """What one who guesses has seen."""

    known: list[float] = field(default_factory=list)
    """Seconds to the first token of prompts that A had asked."""
    fresh: list[float] = field(default_factory=list)
    """The same of prompts that nobody had."""
    num_cached: int = 0
    """Guesses of which the receipt told any cached token."""

    @property
    def auc(self) -> float:
        return auc(self.known, self.fresh)

    @property
    def sigma(self) -> float:
        return sigma(len(self.known), len(self.fresh))


def auc(lower: Sequence[float], higher: Sequence[float]) -> float:
    """Return the probability that one of `lower` is below one of `higher`, ties counting half.

    Source: Mann and Whitney 1947; Hanley and McNeil 1982, "The meaning and use of the area under a ROC
    curve".
    """
    ordered = sorted(higher)
    above = sum(len(ordered) - (bisect_left(ordered, x) + bisect_right(ordered, x)) / 2 for x in lower)
    return above / (len(lower) * len(higher))


def sigma(num_lower: int, num_higher: int) -> float:
    """Return the standard deviation of the AUC of so many that do not differ (1,000 each: 0.0129)."""
    return math.sqrt((num_lower + num_higher + 1) / (12 * num_lower * num_higher))


async def guess(target: str, guesser: str, num_rounds: int, *, seed: int) -> Guesses:
    """Let `guesser` guess what tenant a asks."""
    draw, seen = random.Random(seed), Guesses()
    async with (
        AsyncClient(target, model=MODEL, api_key=KEYS["a"]) as owner,
        AsyncClient(target, model=MODEL, api_key=KEYS[guesser]) as other,
    ):
        await _ask(other, _a_prompt(draw))
        for _ in range(num_rounds):
            asked, fresh = _a_prompt(draw), _a_prompt(draw)
            await _ask(owner, asked)
            for prompt in draw.sample([asked, fresh], 2):
                ttft_s, num_cached = await _ask(other, prompt)
                (seen.known if prompt is asked else seen.fresh).append(ttft_s)
                seen.num_cached += prompt is asked and num_cached > 0
    return seen


def judged(seen: Guesses) -> tuple[Outcome, Outcome]:
    """Say whether no guess had cached tokens, and whether times tell no more than chance does."""
    apart = abs(seen.auc - 0.5) / seen.sigma
    return (
        Outcome(seen.num_cached == 0, f"{seen.num_cached} of {len(seen.known)}"),
        Outcome(apart <= MOST_SIGMA, f"{seen.auc:.3f}, {apart:.1f} sigma"),
    )


async def rows(num_rounds: int) -> list[Row]:
    """Let one tenant guess another one's prompts with and without a salt for each tenant."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(UNSALTED)
        with suite("--sim", config=CONFIG, python_path=folder) as running:
            off = judged(await guess(running.gateway, "b", num_rounds, seed=2))
    with suite("--sim", config=CONFIG) as running:
        on = judged(await guess(running.gateway, "b", num_rounds, seed=1))
    return [
        check_row("another tenant's prompts guessed: with cached tokens", off[0], on[0], "0"),
        check_row("  TTFT beside fresh prompts', AUC", off[1], on[1], f"0.5 within {MOST_SIGMA:.0f} sigma"),
    ]


def _a_prompt(draw: random.Random) -> list[int]:
    return [draw.randrange(1000, 30_000) for _ in range(NUM_TOKENS)]


async def _ask(client: AsyncClient, prompt: list[int]) -> tuple[float, int]:
    """Return the seconds to the first token, and the cached tokens of the receipt."""
    began, ttft_s = time.perf_counter(), 0.0
    async with client.generate(prompt, max_output_tokens=1, ignore_eos=True) as stream:
        async for event in stream:
            # A token may be less than a character: then its end is the first that is heard of it.
            if isinstance(event, Delta | Finished) and not ttft_s:
                ttft_s = time.perf_counter() - began
            if isinstance(event, Receipt):
                return ttft_s, event.usage.cached_tokens
    raise AssertionError("no receipt")
