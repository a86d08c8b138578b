"""Turns text into token ids and ids into bytes, for one model.

Knows one rule above all: text that comes from a user never becomes a control id, whatever it spells. Knows
nothing of chat templates, stop strings or streams. Thread-safe: nothing changes after construction.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tokenizers import Tokenizer

from services.artifacts.errors import ArtifactError
from services.artifacts.long_text import LongTexts, TooManyTokens
from services.artifacts.vocabulary import bytes_of_tokens


@dataclass(frozen=True, slots=True)
class FittedText:
    """The end of a text that fits."""

    ids: list[int]
    num_cut_tokens: int
    """Tokens cut off its beginning; of a text far too long, at least so many."""


class ModelTokenizer:
    """A model's tokeniser. Ids equal those of the reference library for the same files."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        bos_id: int | None,
        eos_ids: Sequence[int],
        add_bos: bool | None,
        add_prefix: bool = False,
    ) -> None:
        """Wrap a loaded tokeniser.

        Args:
            tokenizer: Owned by this object from now on.
            bos_id: Id that begins a sequence, None when the model has none.
            eos_ids: Ends of sequence that the tokeniser's files declare, the main one first.
            add_bos: Whether plain text begins with BOS; None asks the tokeniser's own post-processor.
            add_prefix: Put a space in front of a text that does not begin with a control token.

        Raises:
            ArtifactError: A scheme that cannot be decoded byte by byte.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        text = tokenizer.to_str()
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.bos_id = bos_id
        self.eos_id = eos_ids[0] if eos_ids else None
        self.eos_ids = frozenset(eos_ids)
        self.add_bos = bos_id is not None and (
            _begins_with(tokenizer, bos_id) if add_bos is None else add_bos
        )
        added = tokenizer.get_added_tokens_decoder()
        self._control = {token_id: token for token_id, token in added.items() if token.special}
        # The parts that matter, not the whole: with its merges a large one takes seconds and 100 MB to parse.
        scheme = {part: _state(getattr(tokenizer, part)) for part in ("decoder", "pre_tokenizer")}
        self._bytes = bytes_of_tokens(tokenizer.get_vocab(with_added_tokens=True), scheme, set(self._control))
        self.max_token_bytes = max(map(len, self._bytes))
        """Bytes of the longest token; asked for by every request."""
        self.special_tokens = {token.content: token_id for token_id, token in self._control.items()}
        """Text of every control token -> its id."""
        self._special_pattern = _special_pattern(self._control.values())
        unknown = getattr(tokenizer.model, "unk_token", None)
        self._forbidden = frozenset(self._control) - {tokenizer.token_to_id(unknown) if unknown else None}
        self._prefix = " " if add_prefix else ""
        self._plain = tokenizer
        self._plain.encode_special_tokens = True
        self._continuation = _without_first_prefix(text) or tokenizer
        self._long = LongTexts(self._bytes, lambda part: self._encode_ordinary(part, is_first=False))

    @property
    def vocab_size(self) -> int:
        """Ids the tokeniser knows, from 0; a model's output rows may be padded beyond them."""
        return len(self._bytes)

    def to_json(self) -> str:
        """Return the tokeniser as a tokenizer.json would hold it."""
        text: str = self._plain.to_str()
        return text

    def max_chars(self, context_tokens: int) -> int:
        """Return the longest text worth tokenising: more characters cannot fit into `context_tokens`.

        Every token covers at most `max_token_bytes` bytes and every character takes at least one.
        """
        return context_tokens * self.max_token_bytes

    def encode_text(self, text: str, *, add_bos: bool, max_tokens: int | None = None) -> list[int]:
        """Return the ids of a plain text; spellings of control tokens in it are ordinary characters.

        Bytes that the vocabulary has no token for vanish, as in the reference library: the result can be
        empty although the text is not.

        Args:
            text: Any text, already checked against `max_chars`.
            add_bos: Begin with BOS if the model wants one (exactly one, also when the text spells it).
            max_tokens: What may be of use; the result can still be longer.

        Raises:
            TooManyTokens: The text is far longer than `max_tokens`; little more than so many were made.
        """
        if max_tokens is not None:
            self._long.check(text, max_tokens)
        return [*self._begin(add_bos), *self._encode_ordinary(text, is_first=True)]

    def encode_text_to_fit(self, text: str, max_tokens: int, *, add_bos: bool) -> FittedText:
        """Return the ids of the end of a plain text, `max_tokens` at most; BOS stays where there is room."""
        begin = self._begin(add_bos) if max_tokens > 1 else []
        room = max(0, max_tokens - len(begin))
        tail = self._long.tail(text, room) if self._long.is_long(len(text), max_tokens) else None
        start, ids = (0, self._encode_ordinary(text, is_first=True)) if tail is None else tail
        kept = ids[max(0, len(ids) - room) :]
        num_before = len(text[:start].encode()) // self.max_token_bytes
        return FittedText([*begin, *kept], num_before + len(ids) - len(kept))

    def start_of_last(self, text: str, num_tokens: int) -> int:
        """Return the index of the character with which about the last `num_tokens` tokens of `text` begin."""
        tail = self._long.tail(text, num_tokens)
        start = 0 if tail is None else tail[0]
        encoding = self._continuation.encode(text[start:], add_special_tokens=False)
        if num_tokens < 1 or not encoding.ids:
            return len(text)
        return start + int(encoding.offsets[-num_tokens:][0][0])

    def encode_rendered(
        self, text: str, restore: Mapping[int, str] | None = None, *, max_tokens: int | None = None
    ) -> list[int]:
        """Return the ids of a rendered template, in which spellings of control tokens count.

        Args:
            text: The template's output; nothing is added in front of it.
            restore: Marks that stand for characters which must not take part in a control token
                (code point -> character, as for `str.translate`); undone before the rest is tokenised.
            max_tokens: As for `encode_text`.

        Raises:
            TooManyTokens: As `encode_text`.
        """
        most = max_tokens if max_tokens is not None and self._long.is_long(len(text), max_tokens) else None
        ids: list[int] = []
        for index, (part, control_id) in enumerate(self._parts_of_rendered(text)):
            part = part.translate(restore or {})
            if most is not None:
                if len(ids) > most:
                    raise TooManyTokens
                self._long.check(part, most - len(ids))
            ids += self._encode_ordinary(part, is_first=not index)
            if control_id is not None:
                ids.append(control_id)
        return ids

    def _parts_of_rendered(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Yield ordinary text and the control token that ends it; the last has none."""
        start = 0
        for match in self._special_pattern.finditer(text) if self._special_pattern else ():
            yield text[start : match.start()], self.special_tokens[match[match.lastindex or 0]]
            start = match.end()
        yield text[start:], None

    def _begin(self, add_bos: bool) -> list[int]:
        return [self.bos_id] if add_bos and self.add_bos and self.bos_id is not None else []

    def is_control(self, token_id: int) -> bool:
        """Whether the id stands for no text: a control token, or padding of the output rows."""
        return token_id in self._control or not 0 <= token_id < len(self._bytes)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token adds to the text, part of a character at times; b"" for controls."""
        return b"" if self.is_control(token_id) else self._bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """Return how the vocabulary spells a token, for people: controls by their name."""
        if token_id in self._control:
            return str(self._control[token_id].content)
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; controls vanish and bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def _encode_ordinary(self, text: str, *, is_first: bool) -> list[int]:
        if not text:
            return []
        tokenizer = self._plain if is_first else self._continuation
        text = self._prefix + text if is_first else text
        encoding = tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        if self._forbidden.isdisjoint(ids):
            return ids
        return self._spell_out(text, ids, encoding.offsets)

    def _spell_out(self, text: str, ids: list[int], offsets: list[tuple[int, int]]) -> list[int]:
        """Replace control ids that a vocabulary's own merges made of plain text by their characters' ids."""
        safe: list[int] = []
        for token_id, (start, end) in zip(ids, offsets, strict=True):
            if token_id not in self._forbidden:
                safe.append(token_id)
                continue
            for character in text[start:end]:
                encoded = self._continuation.encode(character, add_special_tokens=False).ids
                safe += [spelled for spelled in encoded if spelled not in self._forbidden]
        return safe


def _begins_with(tokenizer: Tokenizer, bos_id: int) -> bool:
    """Whether the tokeniser's post-processor puts `bos_id` in front of a text."""
    ids: list[int] = tokenizer.encode("a", add_special_tokens=True).ids
    return ids[:1] == [bos_id]


def _state(part: Any) -> Any:
    """Return a tokeniser's part as tokenizer.json spells it."""
    return None if part is None else json.loads(part.__getstate__())


def _special_pattern(tokens: Iterable[Any]) -> re.Pattern[str] | None:
    """Match any control token, the longest at a place, with the white space that it swallows."""
    ordered = sorted((token for token in tokens if token.content), key=lambda token: -len(token.content))
    alternatives = [
        (r"\s*" if lstrip else "")
        + f"({_any_of([token.content for token in alike])})"
        + (r"\s*" if rstrip else "")
        for (lstrip, rstrip), alike in groupby(ordered, key=lambda token: (token.lstrip, token.rstrip))
    ]
    return re.compile("|".join(alternatives)) if alternatives else None


def _any_of(words: Sequence[str]) -> str:
    """Return an expression for the longest of `words` at a place.

    Beginnings are shared: some vocabularies have thousands of control tokens, and an alternative for each
    would be tried at every character.
    """
    rests: dict[str, list[str]] = {}
    for word in words:
        rests.setdefault(word[:1], []).append(word[1:])
    is_whole = rests.pop("", None) is not None
    branches = "|".join(re.escape(first) + _any_of(rest) for first, rest in rests.items())
    if len(rests) > 1 or (is_whole and rests):
        branches = f"(?:{branches})"
    return branches + "?" if is_whole and rests else branches


def _without_first_prefix(text: str) -> Tokenizer | None:
    """Return a copy that puts no space in front, for text after a control token; None if that is moot."""
    edited = text.replace('"prepend_scheme":"first"', '"prepend_scheme":"never"')
    if edited == text:
        return None
    tokenizer = Tokenizer.from_str(edited)
    tokenizer.encode_special_tokens = True
    return tokenizer


def parse_tokenizer(text: str, source: str) -> Tokenizer:
    """Parse the content of a tokenizer.json.

    Raises:
        ArtifactError: It is damaged or of an unknown version.
    """
    try:
        return Tokenizer.from_str(text)
    except Exception as exc:  # the library raises bare Exception
        raise ArtifactError(f"{source}: not a readable tokeniser ({exc}); fetch the model again") from exc
