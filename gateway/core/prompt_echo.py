"""The prompt as it is given back to whoever asked for it: its text, and what the worker says of its tokens.

Knows ids and bytes of tokens; knows nothing of choices, of transport or of when to send.
"""

from collections.abc import Callable, Sequence

from gateway.core.choice import Gap, Tops
from gateway.core.events import Echo, TokenRecord


class PromptEcho:
    """Collects the scores of one prompt, and gives it back once.

    Args:
        token_bytes: Bytes of a token id; empty for control tokens.
        text: The prompt as it came, where it came as text.
        keep_records: Give a record for each token (ids or logprobs were asked for).
        is_scored: The worker sends log-probabilities of all tokens but the first.
    """

    __slots__ = (
        "_ids", "_keep_records", "_logprobs", "_num_wanted", "_text", "_token_bytes", "_tops", "is_told",
    )  # fmt: skip

    def __init__(
        self,
        ids: Sequence[int],
        token_bytes: Callable[[int], bytes],
        *,
        text: str | None,
        keep_records: bool,
        is_scored: bool,
    ) -> None:
        self._ids = ids
        self._token_bytes = token_bytes
        self._text = text
        self._keep_records = keep_records
        self._num_wanted = len(ids) - 1 if is_scored else 0
        self._logprobs: list[float] = []
        self._tops: list[tuple[tuple[int, float], ...]] = []
        self.is_told = False

    @property
    def is_complete(self) -> bool:
        """Whether all that was asked for is here."""
        return len(self._logprobs) == self._num_wanted

    def arrive(self, first_position: int, logprobs: Sequence[float], tops: Tops) -> None:
        """Take scores of the prompt's tokens from `first_position` on; what is here already is dropped.

        Raises:
            Gap: Positions are missing, or there are more than the prompt has.
        """
        skip = 1 + len(self._logprobs) - first_position
        if skip < 0 or first_position + len(logprobs) > 1 + self._num_wanted:
            raise Gap(
                f"expected scores of prompt tokens from {1 + len(self._logprobs)}, got {first_position}"
            )
        self._logprobs += logprobs[skip:]
        self._tops += tops[skip:]

    def take(self) -> Echo:
        """Give the prompt back."""
        self.is_told = True
        parts = [self._token_bytes(token_id) for token_id in self._ids]
        # A space that the tokenizer puts in front of every text is not the caller's.
        if self._text is not None and b"".join(parts) == b" " + self._text.encode():
            first = next(index for index, part in enumerate(parts) if part)
            parts[first] = parts[first][1:]
        text = b"".join(parts).decode("utf-8", errors="replace")
        return Echo(text, self._records(parts) if self._keep_records else ())

    def _records(self, parts: Sequence[bytes]) -> tuple[TokenRecord, ...]:
        logprobs: list[float | None] = [*self._logprobs] or [None] * (len(self._ids) - 1)
        tops = self._tops or [()] * len(logprobs)
        scored = zip(self._ids[1:], parts[1:], logprobs, tops, strict=True)
        return (
            TokenRecord(self._ids[0], parts[0]),
            *(
                TokenRecord(token_id, part, logprob, tuple((o, self._token_bytes(o), v) for o, v in top))
                for token_id, part, logprob, top in scored
            ),
        )
