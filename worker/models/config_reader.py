"""Reads a config mapping and proves that every key in it was understood.

Knows Hugging Face's key names only as far as they change no maths; the families read the others.
"""

from collections.abc import Mapping
from typing import Any

from worker.models.errors import UnsupportedModel

HARMLESS = frozenset(
    [
        "_attn_implementation",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "attn_implementation",
        "auto_map",
        "bad_words_ids",
        "begin_suppress_tokens",
        "bos_token_id",
        "chunk_size_feed_forward",
        "decoder_start_token_id",
        "dtype",
        "eos_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "id2label",
        "initializer_range",
        "is_decoder",
        "is_encoder_decoder",
        "is_llama_config",
        "label2id",
        "max_window_layers",
        "model_type",
        "name_or_path",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "prefix",
        "problem_type",
        "return_dict",
        "sep_token_id",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "use_bfloat16",
        "use_cache",
        "use_return_dict",
    ]
)
"""Keys about training, tokens, files or API style: they never change a logit of one forward pass."""


class ConfigReader:
    """Typed access to a config; `finish` refuses what nobody read."""

    def __init__(self, config: Mapping[str, Any], *, what: str = "config") -> None:
        self._config = config
        self._what = what
        self._read: set[str] = set()

    def value(self, key: str, default: Any = None) -> Any:
        """Return a key's value; null counts as absent."""
        self._read.add(key)
        found = self._config.get(key)
        return default if found is None else found

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive whole number.

        Raises:
            UnsupportedModel: Missing without a default, or something else.
        """
        found = self.value(key, default)
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise UnsupportedModel(f"{self._what} needs {key} as a positive integer, got {found!r}")
        return found

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number.

        Raises:
            UnsupportedModel: Missing without a default, or something else.
        """
        found = self.value(key, default)
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not found > 0:
            raise UnsupportedModel(f"{self._what} needs {key} as a positive number, got {found!r}")
        return float(found)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a boolean.

        Raises:
            UnsupportedModel: Something else.
        """
        found = self.value(key, default)
        if not isinstance(found, bool):
            raise UnsupportedModel(f"{self._what} needs {key} as true or false, got {found!r}")
        return found

    def require(self, key: str, *supported: Any) -> None:
        """Accept a key only when it is absent or has a supported value.

        Raises:
            UnsupportedModel: It has another one.
        """
        found = self.value(key, supported[0])
        if found not in supported:
            raise UnsupportedModel(
                f"{self._what} has {key} = {found!r}; supported: {', '.join(map(repr, supported))}"
            )

    def finish(self) -> None:
        """Refuse keys that nobody read, unless they are harmless or switch nothing on (null, false).

        Raises:
            UnsupportedModel: One is left.
        """
        for key in sorted(set(self._config) - self._read - HARMLESS):
            value = self._config[key]
            if value is not None and value is not False:
                raise UnsupportedModel(f"{self._what} has {key} = {value!r}, which this family does not know")
