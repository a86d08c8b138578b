"""Reads SentencePiece's `tokenizer.model` and builds BPE tokenisers of its kind (GGUF's `llama` type too).

Knows pieces, scores and byte fallback; knows nothing of files' places or of chat. Only BPE models are read:
a unigram model segments by a search that merges cannot express.

Source: sentencepiece_model.proto (field numbers); Kudo and Richardson 2018.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from services.artifacts.errors import ArtifactError
from services.artifacts.vocabulary import SPACE

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_BPE = 2


@dataclass(slots=True)
class Pieces:
    """A vocabulary in order of id."""

    tokens: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    add_prefix: bool = True
    """Whether a text gets a space in front."""
    bos_id: int | None = 1
    eos_id: int | None = 2


def build_bpe(pieces: Pieces, *, prefix_parts: bool) -> Tokenizer:
    """Return the tokeniser of a scored vocabulary.

    SentencePiece joins the neighbouring pair whose joined piece has the highest score, leftmost first: that
    is BPE with one merge per way to cut a piece in two, in order of the joined piece's score. Control pieces
    get no merges, so that no text can become one.

    Args:
        prefix_parts: Put a space in front of every part between control tokens. Without it the caller puts
            one in front of the whole text, if the vocabulary wants that.
    """
    vocabulary = {token: index for index, token in enumerate(pieces.tokens)}
    if len(vocabulary) != len(pieces.tokens):
        raise ArtifactError("the tokeniser's vocabulary names a token twice; convert the model again")
    ordinary = {
        token: score
        for token, score, kind in zip(pieces.tokens, pieces.scores, pieces.kinds, strict=True)
        if kind in (NORMAL, USER_DEFINED)
    }
    unknown = next((t for t, kind in zip(pieces.tokens, pieces.kinds, strict=True) if kind == UNKNOWN), None)
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            _merges(ordinary, vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=BYTE in pieces.kinds,
        )
    )
    to_piece = normalizers.Replace(" ", SPACE)
    prefix = [normalizers.Prepend(SPACE)] if prefix_parts else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, to_piece])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    add_tokens_of_kinds(tokenizer, pieces.tokens, pieces.kinds)
    return tokenizer


def add_tokens_of_kinds(tokenizer: Tokenizer, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    """Declare control pieces (never made from text) and user-defined ones (matched whole in text)."""
    pairs = list(zip(tokens, kinds, strict=True))
    controls = [
        AddedToken(t, special=True, normalized=False) for t, k in pairs if k in (CONTROL, UNKNOWN) and t
    ]
    tokenizer.add_special_tokens(controls)
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, k in pairs if k == USER_DEFINED and t])


def _merges(ordinary: dict[str, float], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Return all cuts of all pieces into two pieces, best joined score first; ties by the halves' ids."""
    cuts = [
        (-score, vocabulary[left], vocabulary[right], left, right)
        for token, score in ordinary.items()
        for cut in range(1, len(token))
        if (left := token[:cut]) in ordinary and (right := token[cut:]) in ordinary
    ]
    cuts.sort()
    return [(left, right) for *_, left, right in cuts]


def parse_sentencepiece(data: bytes, source: str) -> Pieces:
    """Parse the protobuf of a `tokenizer.model`.

    Raises:
        ArtifactError: Damaged, or not a BPE model.
    """
    pieces = Pieces()
    model_type = _BPE
    try:
        for number, value in _fields(data):
            if number == 1 and isinstance(value, bytes):
                entry = dict(_fields(value))
                pieces.tokens.append(bytes(entry[1]).decode())  # type: ignore[arg-type]
                pieces.scores.append(float(entry.get(2, 0.0)))
                pieces.kinds.append(int(entry.get(3, NORMAL)))
            elif number == 2 and isinstance(value, bytes):
                trainer = dict(_fields(value))
                model_type = int(trainer.get(3, 1))
                pieces.bos_id, pieces.eos_id = (_signed(trainer.get(n, n - 40)) for n in (41, 42))
            elif number == 3 and isinstance(value, bytes):
                pieces.add_prefix = bool(dict(_fields(value)).get(3, 1))
    except (ValueError, KeyError, IndexError, struct.error) as exc:
        raise ArtifactError(
            f"{source}: damaged SentencePiece model ({exc!r}); fetch the model again"
        ) from exc
    if model_type != _BPE or not pieces.tokens:
        raise ArtifactError(
            f"{source}: only BPE SentencePiece models are read; add the model's tokenizer.json"
        )
    return pieces


def _signed(value: int | float | bytes) -> int | None:
    """Return a 32-bit id, None where the model switches it off by a negative one."""
    return int(value) if int(value) < 1 << 31 else None


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield (field number, value) of one protobuf message."""
    offset = 0
    while offset < len(data):
        tag, offset = _varint(data, offset)
        match tag & 7:
            case 0:
                value, offset = _varint(data, offset)
                yield tag >> 3, value
            case 2:
                size, offset = _varint(data, offset)
                if offset + size > len(data):
                    raise ValueError("a field is longer than the file")
                yield tag >> 3, data[offset : offset + size]
                offset += size
            case 5:
                yield tag >> 3, struct.unpack_from("<f", data, offset)[0]
                offset += 4
            case 1:
                yield tag >> 3, struct.unpack_from("<d", data, offset)[0]
                offset += 8
            case kind:
                raise ValueError(f"wire type {kind}")


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        offset += 1
        if byte < 0x80:
            return value, offset
        shift += 7
