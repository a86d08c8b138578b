"""A tokenizer whose ids are bytes, with a BOS (256) and two ends of sequence (257 and 258)."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.request import ChatTurn
from gateway.models import LocalModel
from services.domain.errors import PromptTooLong

BOS, EOS, EOS_OF_TURN, VOCAB_SIZE = 256, 257, 258, 260


class ByteTokenizer:
    bos_id: int | None = BOS

    def encode_text(self, text: str, *, add_bos: bool, max_tokens: int | None = None) -> list[int]:
        return [BOS] * add_bos + list(text.encode())

    def encode_text_to_fit(self, text: str, max_tokens: int, *, add_bos: bool) -> "Fitted":
        ids = list(text.encode())
        kept = ids[-max(0, max_tokens - add_bos) :]
        return Fitted([BOS] * add_bos + kept, len(ids) - len(kept))

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def max_chars(self, context_tokens: int) -> int:
        return context_tokens


@dataclass(frozen=True)
class Fitted:
    ids: list[int]
    num_cut_tokens: int


class ByteTemplate:
    """`role:content|` per turn."""

    def encode(self, messages: Sequence[ChatTurn], *, max_tokens: int | None = None) -> list[int]:
        return list("".join(f"{turn.role}:{turn.content}|" for turn in messages).encode())

    def encode_to_fit(self, messages: Sequence[ChatTurn], max_tokens: int) -> Fitted:
        num_all = len(self.encode(messages))
        for start in range(len(messages)):
            ids = self.encode(messages[start:])
            if len(ids) <= max_tokens:
                return Fitted(ids, num_all - len(ids))
        raise PromptTooLong("chat.messages", f"must fit into {max_tokens} tokens")


def byte_model(name: str = "tiny") -> LocalModel:
    return LocalModel(
        name=name,
        tokenizer=ByteTokenizer(),
        template=ByteTemplate(),
        vocab_size=VOCAB_SIZE,
        eos_token_ids=frozenset({EOS, EOS_OF_TURN}),
        generation_defaults={},
    )
