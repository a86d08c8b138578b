"""Says which bytes every token of a vocabulary stands for.

Knows the two schemes in use, byte-level alphabets and SentencePiece pieces with byte fallback; knows nothing
of merges or of how text is split.
"""

import json
import re
from collections.abc import Mapping, Set
from typing import Any

from services.artifacts.errors import ArtifactError

SPACE = "▁"
"""SentencePiece's stand-in for a space."""
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """Return the printable character of every byte in byte-level vocabularies: character -> byte.

    Printable Latin-1 characters stand for themselves, the other 68 bytes for code points from 256 up.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in sorted(printable)}
    rest = [byte for byte in range(256) if byte not in printable]
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(rest)}


def bytes_of_tokens(
    vocabulary: Mapping[str, int], spec: Mapping[str, Any], control_ids: Set[int]
) -> list[bytes]:
    """Return the bytes of each id from 0 to the highest; b"" for controls and for ids nobody uses.

    Args:
        vocabulary: Token as spelled -> id, added tokens included.
        spec: `decoder` and `pre_tokenizer` of a tokenizer.json, which tell the scheme.
        control_ids: Ids that stand for no text.

    Raises:
        ArtifactError: Neither scheme.
    """
    decoder = json.dumps([spec.get("decoder"), spec.get("pre_tokenizer")])
    result = [b""] * (max(vocabulary.values(), default=-1) + 1)
    if '"ByteLevel"' in decoder:
        alphabet = byte_alphabet()
        for token, token_id in vocabulary.items():
            if token_id not in control_ids:
                try:
                    result[token_id] = bytes([alphabet[character] for character in token])
                except KeyError:  # an added token outside the alphabet is spelled as it is
                    result[token_id] = token.encode()
    elif '"Metaspace"' in decoder or f'"{SPACE}"' in json.dumps(spec.get("decoder"), ensure_ascii=False):
        for token, token_id in vocabulary.items():
            if token_id not in control_ids:
                match = _BYTE_PIECE.fullmatch(token) if token.startswith("<0x") else None
                result[token_id] = bytes.fromhex(match[1]) if match else token.replace(SPACE, " ").encode()
    else:
        raise ArtifactError(
            "the tokeniser is neither byte-level nor SentencePiece-like; use a model of a supported family"
        )
    return result
