"""Names of our parameters in the files people publish, and what was done to a tensor on its way there.

Knows file conventions as data; knows nothing of arrays (the loader carries a transform out).
"""

import re
from enum import StrEnum

from worker.models.errors import UnsupportedModel


class WeightFormat(StrEnum):
    """A convention for tensor names and row orders."""

    HUGGING_FACE = "hf"
    GGUF = "gguf"


class Transform(StrEnum):
    """What the loader does to a file's tensor before use."""

    NONE = "none"
    UNPERMUTE_HEADS = "unpermute_heads"
    """Rows of each head are stored as pairs (0, d/2), (1, d/2 + 1) ...; put the halves back in order."""
    ADD_ONE = "add_one"
    """Norms that multiply by 1 + w are stored as w."""


_HEADS = {"q": Transform.UNPERMUTE_HEADS, "k": Transform.UNPERMUTE_HEADS}

_UNPERMUTE_LLAMA = {**_HEADS, "q_bias": _HEADS["q"], "k_bias": _HEADS["k"]}
_GEMMA_NORMS = [
    "attention_norm",
    "post_attention_norm",
    "pre_ffn_norm",
    "post_ffn_norm",
    "q_norm",
    "k_norm",
    "final_norm",
]

TRANSFORMS: dict[tuple[str, WeightFormat], dict[str, Transform]] = {
    ("llama", WeightFormat.HUGGING_FACE): {},
    ("llama", WeightFormat.GGUF): _UNPERMUTE_LLAMA,
    ("mistral", WeightFormat.HUGGING_FACE): {},
    ("mistral", WeightFormat.GGUF): _UNPERMUTE_LLAMA,
    ("qwen2", WeightFormat.HUGGING_FACE): {},
    ("qwen2", WeightFormat.GGUF): {},
    ("qwen3", WeightFormat.HUGGING_FACE): {},
    ("qwen3", WeightFormat.GGUF): {},
    ("gemma3", WeightFormat.HUGGING_FACE): dict.fromkeys(_GEMMA_NORMS, Transform.ADD_ONE),
    # Converters add the one themselves.
    ("gemma3", WeightFormat.GGUF): {},
}
"""(family, format) -> role -> transform; a role that is not named is taken as it is."""

_LAYER = re.compile(r"layers\.(\d+)\.(\w+)")

_ROLES = {
    # role: (Hugging Face, GGUF); roles below `layers` carry the layer number.
    "embedding": ("model.embed_tokens.weight", "token_embd.weight"),
    "final_norm": ("model.norm.weight", "output_norm.weight"),
    "head": ("lm_head.weight", "output.weight"),
    "attention_norm": ("model.layers.{}.input_layernorm.weight", "blk.{}.attn_norm.weight"),
    "ffn_norm": ("model.layers.{}.post_attention_layernorm.weight", "blk.{}.ffn_norm.weight"),
    "post_attention_norm": (
        "model.layers.{}.post_attention_layernorm.weight",
        "blk.{}.post_attention_norm.weight",
    ),
    "pre_ffn_norm": ("model.layers.{}.pre_feedforward_layernorm.weight", "blk.{}.ffn_norm.weight"),
    "post_ffn_norm": ("model.layers.{}.post_feedforward_layernorm.weight", "blk.{}.post_ffw_norm.weight"),
    "q_norm": ("model.layers.{}.self_attn.q_norm.weight", "blk.{}.attn_q_norm.weight"),
    "k_norm": ("model.layers.{}.self_attn.k_norm.weight", "blk.{}.attn_k_norm.weight"),
}
_PROJECTIONS = {
    "q": ("self_attn.q_proj", "attn_q"),
    "k": ("self_attn.k_proj", "attn_k"),
    "v": ("self_attn.v_proj", "attn_v"),
    "o": ("self_attn.o_proj", "attn_output"),
    "gate": ("mlp.gate_proj", "ffn_gate"),
    "up": ("mlp.up_proj", "ffn_up"),
    "down": ("mlp.down_proj", "ffn_down"),
}
for _role, (_hf, _gguf) in _PROJECTIONS.items():
    _ROLES[_role] = (f"model.layers.{{}}.{_hf}.weight", f"blk.{{}}.{_gguf}.weight")
    _ROLES[f"{_role}_bias"] = (f"model.layers.{{}}.{_hf}.bias", f"blk.{{}}.{_gguf}.bias")

_VISION = re.compile(r"(?:model\.)?(?:vision_tower|multi_modal_projector)\.")
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def role_of(parameter: str) -> str:
    """Return a parameter's role: its name without the layer."""
    found = _LAYER.fullmatch(parameter)
    return found.group(2) if found else parameter


def layer_of(parameter: str) -> int | None:
    """Return the number of a parameter's layer, from 0; None for what belongs to none."""
    found = _LAYER.fullmatch(parameter)
    return int(found.group(1)) if found else None


def file_name_of(parameter: str, weight_format: WeightFormat) -> str:
    """Return the tensor's name in a file of that format."""
    found = _LAYER.fullmatch(parameter)
    name = _ROLES[role_of(parameter)][0 if weight_format is WeightFormat.HUGGING_FACE else 1]
    return name.format(found.group(1)) if found else name


def text_name_of(tensor: str) -> str | None:
    """Return the name that a text-only file gives a tensor; None for what only sees images.

    Files of models that also see wrap the text model, in one of two spellings.
    """
    if _VISION.match(tensor):
        return None
    for wrapped, plain in (("language_model.", ""), ("model.language_model.", "model.")):
        if tensor.startswith(wrapped):
            return plain + tensor.removeprefix(wrapped)
    return tensor


def is_derived(tensor: str) -> bool:
    """Whether a file's tensor only repeats what the config says (old checkpoints carry rope's table)."""
    return _DERIVED.fullmatch(tensor) is not None


def transform_of(family: str, weight_format: WeightFormat, parameter: str) -> Transform:
    """Return what must be done to the tensor of `parameter` in a file of that family and format.

    Raises:
        UnsupportedModel: The family's facts in that format are not known.
    """
    facts = TRANSFORMS.get((family, weight_format))
    if facts is None:
        raise UnsupportedModel(f"weights of family {family!r} in format {weight_format} are not known")
    return facts.get(role_of(parameter), Transform.NONE)
