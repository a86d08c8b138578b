"""Log-probabilities of a prompt's own tokens: which are known, and which rows of a chunk give the next ones.

The logits of a token score the one that follows it, so the first token has no score and the last one's logits
are not needed for any. Knows one prompt; knows nothing of pages, steps or other sequences.
"""

from collections.abc import Sequence

from services.domain.generation import SamplingParams
from worker.engine.batch import SampleRow, TopLogprobs


class PromptScores:
    """Scores of one prompt, in order, as far as its chunks have given them."""

    __slots__ = ("_num_wanted", "logprobs", "prompt_ids", "row", "tops")

    def __init__(self, prompt_ids: Sequence[int], num_top: int) -> None:
        self.prompt_ids = prompt_ids
        self.row = SampleRow(
            params=SamplingParams(temperature=0, num_logprobs=num_top),
            choice=0,
            position=0,
            prompt_ids=prompt_ids,
            output_ids=(),
        )
        """What every scored row asks for; its target is what differs."""
        self.logprobs: list[float] = []
        """Of the prompt's tokens from the second on."""
        self.tops: list[TopLogprobs] = []
        """Parallel to `logprobs`; empty where no alternatives were asked for."""
        self._num_wanted = len(prompt_ids) - 1

    @property
    def num_scored(self) -> int:
        """Leading tokens whose logits have been used; those of the next one are wanted next."""
        return len(self.logprobs)

    @property
    def num_reusable(self) -> int:
        """Leading tokens whose logits nobody wants any more."""
        return self.num_scored if self.num_scored < self._num_wanted else len(self.prompt_ids)

    def num_in(self, end: int) -> int:
        """Return how many scores the tokens before position `end` add to those known."""
        return max(0, min(end, self._num_wanted) - self.num_scored)

    def longest_chunk(self, start: int, num_tokens: int, room: int) -> int:
        """Return how many of `num_tokens` from position `start` add at most `room` scores.

        Worked number: a prompt of 100, nothing known, room for 64: 64 of 100 tokens, then 36 (35 scores).
        """
        if self.num_in(start + num_tokens) <= room:
            return num_tokens
        return self.num_scored + room - start

    def targets(self, count: int) -> Sequence[int]:
        """Return the next `count` ids to be scored."""
        first = self.num_scored + 1
        return self.prompt_ids[first : first + count]

    def add(self, logprobs: list[float], tops: list[TopLogprobs]) -> None:
        """Note the next scores. `tops` is empty where no alternatives were asked for."""
        self.logprobs += logprobs
        self.tops += tops
