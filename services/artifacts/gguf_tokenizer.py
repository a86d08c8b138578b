"""Builds a model's tokeniser from GGUF metadata.

Knows the pre-tokeniser of each `tokenizer.ggml.pre` we serve; an unknown one is an error, because a wrong
split gives plausible and wrong ids. Knows nothing of tensors.

Source: the expressions are those of the models' own tokenizer.json files.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from services.artifacts.errors import ArtifactError
from services.artifacts.sentencepiece_model import Pieces, add_tokens_of_kinds, build_bpe
from services.artifacts.tokenizer import ModelTokenizer

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def _split(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_apart() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


_PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "gpt-2": _gpt2,
    "default": _gpt2,
    "smollm": _digits_apart,
    "starcoder": _digits_apart,
    "refact": _digits_apart,
    "command-r": _digits_apart,
    "llama-bpe": lambda: _split(_LLAMA3),
    "llama3": lambda: _split(_LLAMA3),
    "llama-v3": lambda: _split(_LLAMA3),
    "qwen2": lambda: _split(_QWEN2),
}
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_WHEN_ABSENT = {"qwen2": "qwen2", "qwen3": "qwen2", "gpt2": "gpt-2", "starcoder2": "starcoder"}
"""Architecture -> pre-tokeniser of files from before the key existed, where there was only one."""


def tokenizer_from_gguf(metadata: Mapping[str, Any], source: str) -> ModelTokenizer:
    """Return the tokeniser that the metadata describes.

    Raises:
        ArtifactError: Of a kind, or with a pre-tokeniser, that we do not know; or the vocabulary is missing.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise ArtifactError(f"{source}: holds no tokeniser; convert the model again with its vocabulary")
    kinds = [int(k) for k in metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))]
    bos_id, eos_id, eot_id = (metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "eot"))
    if kind == "gpt2":
        pre = _pre_tokenizer_name(metadata, source)
        tokenizer = _byte_level(metadata, pre, tokens, source)
        add_tokens_of_kinds(tokenizer, tokens, kinds)
        default_bos = pre in _LLAMA3_NAMES
    elif kind == "llama":
        scores = [float(score) for score in metadata.get("tokenizer.ggml.scores", ())]
        if len(scores) != len(tokens):
            raise ArtifactError(f"{source}: vocabulary without scores; convert the model again")
        add_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        tokenizer = build_bpe(Pieces(tokens, scores, kinds), prefix_parts=add_prefix)
        default_bos = True
    else:
        raise ArtifactError(f"{source}: tokeniser of kind {kind!r} is not supported; use a gpt2 or llama one")
    return ModelTokenizer(
        tokenizer,
        bos_id=bos_id,
        eos_ids=[token_id for token_id in (eos_id, eot_id) if token_id is not None],
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", default_bos)),
    )


def _pre_tokenizer_name(metadata: Mapping[str, Any], source: str) -> str:
    name = metadata.get("tokenizer.ggml.pre")
    if name is None:
        name = _WHEN_ABSENT.get(str(metadata.get("general.architecture")))
        if name is None:
            raise ArtifactError(
                f"{source}: names no pre-tokeniser (tokenizer.ggml.pre); convert the model again"
            )
    if name not in _PRE_TOKENIZERS:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise ArtifactError(f"{source}: unknown pre-tokeniser {name!r}; use a model with one of {known}")
    return str(name)


def _byte_level(metadata: Mapping[str, Any], pre: str, tokens: list[str], source: str) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ArtifactError(f"{source}: the vocabulary names a token twice; convert the model again")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", ())]
    try:
        model = models.BPE(vocabulary, merges, ignore_merges=pre in _LLAMA3_NAMES)
    except Exception as exc:  # the library raises bare Exception
        raise ArtifactError(
            f"{source}: merges do not match the vocabulary ({exc}); convert it again"
        ) from exc
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer
