"""Builds a model's tokeniser from a Hugging Face folder: tokenizer.json, else a SentencePiece model.

Knows which file wins and what tokenizer_config.json may add; knows nothing of weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from services.artifacts.errors import ArtifactError
from services.artifacts.model_folder import read_json, token_text
from services.artifacts.sentencepiece_model import build_bpe, parse_sentencepiece
from services.artifacts.tokenizer import ModelTokenizer, parse_tokenizer

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


def tokenizer_from_folder(folder: Path, config: Mapping[str, Any]) -> ModelTokenizer:
    """Return the folder's tokeniser.

    Args:
        config: The model's config, asked for BOS where the tokeniser's own files are silent.

    Raises:
        ArtifactError: No tokeniser, a damaged one, or one of a kind that we do not read.
    """
    settings = read_json(folder / "tokenizer_config.json")
    add_bos = settings.get("add_bos_token")
    bos_id = config.get("bos_token_id")
    eos_ids: list[int] = []
    add_prefix = False
    if (folder / "tokenizer.json").is_file():
        path = folder / "tokenizer.json"
        tokenizer = parse_tokenizer(path.read_text(encoding="utf-8"), str(path))
    elif (folder / "tokenizer.model").is_file():
        path = folder / "tokenizer.model"
        pieces = parse_sentencepiece(path.read_bytes(), str(path))
        prefix_parts = pieces.add_prefix and settings.get("legacy") is True
        add_prefix = pieces.add_prefix and not prefix_parts
        tokenizer = build_bpe(pieces, prefix_parts=prefix_parts)
        bos_id, eos_ids = pieces.bos_id, [] if pieces.eos_id is None else [pieces.eos_id]
        add_bos = True if add_bos is None else add_bos
    else:
        raise ArtifactError(f"{folder}: has no tokenizer.json and no tokenizer.model; fetch the model again")
    _declare_special_tokens(tokenizer, settings)
    if (bos := token_text(settings.get("bos_token"))) is not None:
        bos_id = tokenizer.token_to_id(bos)
    if (eos := token_text(settings.get("eos_token"))) is not None:
        eos_id = tokenizer.token_to_id(eos)
        eos_ids += [] if eos_id is None else [eos_id]
    return ModelTokenizer(tokenizer, bos_id=bos_id, eos_ids=eos_ids, add_bos=add_bos, add_prefix=add_prefix)


def _declare_special_tokens(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> None:
    """Mark what tokenizer_config.json calls special; ids stay those of the tokeniser's file."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    declared = {
        entry["content"]: entry
        for _, entry in sorted(
            settings.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0])
        )
        if entry.get("special")
    }
    for value in [
        *(settings.get(role) for role in _ROLES),
        *(settings.get("additional_special_tokens") or ()),
    ]:
        if (text := token_text(value)) is not None:
            declared.setdefault(text, {"content": text})
    tokenizer.add_special_tokens(
        [
            AddedToken(
                text,
                special=True,
                normalized=False,
                lstrip=bool(entry.get("lstrip")),
                rstrip=bool(entry.get("rstrip")),
            )
            for text, entry in declared.items()
            if text not in known
        ]
    )
