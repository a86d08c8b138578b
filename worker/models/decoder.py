"""The pre-norm decoder with rotary attention and a gated MLP that several families share.

Knows the shape of such a model; what a family switches on is in its own file.
"""

from dataclasses import dataclass

from worker.models.config_reader import ConfigReader
from worker.models.errors import UnsupportedModel
from worker.models.rope import read_rope
from worker.plan.graph import Graph
from worker.plan.op import Activation, RopeTable, Slot


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """How one layer's attention differs from another's."""

    window: int = 0
    """Keys a token looks back at, its own included; 0 is all."""
    rope: int = 0
    """Index into the model's rope tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Everything that decides the maths of such a model."""

    vocab_size: int
    hidden_size: int
    ffn_size: int
    layers: tuple[LayerConfig, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_positions: int
    """Tokens of context the model was made for."""
    ropes: tuple[RopeTable, ...]
    is_tied: bool
    """Whether the output head is the embedding."""
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    """Bias after attention's output projection."""
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    has_post_norms: bool = False
    """Whether what attention and MLP give is normalised too, before it is added."""
    attention_scale: float
    """Factor on the products of queries and keys."""
    attention_soft_cap: float = 0.0
    """Bound of attention's scores; 0 is none."""
    activation: Activation
    embedding_scale: float = 1.0
    logit_soft_cap: float = 0.0
    """Bound of the logits; 0 is none."""


_ACTIVATIONS = {"silu": Activation.SILU, "gelu_pytorch_tanh": Activation.GELU_TANH}


def read_decoder(
    config: ConfigReader,
    *,
    has_qkv_bias: bool = False,
    has_output_bias: bool = False,
    has_mlp_bias: bool = False,
    has_qk_norm: bool = False,
    activation: str = "silu",
    default_theta: float = 10000.0,
) -> DecoderConfig:
    """Read the keys that all such families have, and refuse what is left over.

    Raises:
        UnsupportedModel: A key is missing, malformed, unknown, or asks for other maths.
    """
    config.require("hidden_act", activation)
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise UnsupportedModel(
            f"{num_heads} query heads cannot be shared evenly by {num_kv_heads} key-value heads"
        )
    head_dim = config.integer("head_dim", hidden_size // num_heads)
    max_positions = config.integer("max_position_embeddings")
    rope = read_rope(config, head_dim=head_dim, max_positions=max_positions, default_theta=default_theta)
    decoder = DecoderConfig(
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        ffn_size=config.integer("intermediate_size"),
        layers=(LayerConfig(),) * config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        max_positions=max_positions,
        ropes=(rope,),
        is_tied=config.flag("tie_word_embeddings"),
        has_qkv_bias=has_qkv_bias,
        has_output_bias=has_output_bias,
        has_mlp_bias=has_mlp_bias,
        has_qk_norm=has_qk_norm,
        attention_scale=head_dim**-0.5,
        activation=_ACTIVATIONS[activation],
    )
    config.finish()
    return decoder


def require_full_attention(config: ConfigReader) -> None:
    """Accept a family's sliding-window keys only where they are switched off.

    Raises:
        UnsupportedModel: Some layer looks back only a window.
    """
    config.require("use_sliding_window", False)
    config.value("sliding_window")
    for kind in config.value("layer_types", ()):
        if kind != "full_attention":
            raise UnsupportedModel(f"config has a layer of type {kind!r}; supported: 'full_attention'")


def decoder_forward(g: Graph, config: DecoderConfig) -> Slot:
    """Emit the whole model; return the logits."""
    x = g.embed("embedding", vocab_size=config.vocab_size, width=config.hidden_size)
    if config.embedding_scale != 1:
        x = g.scale(x, config.embedding_scale)
    for layer in range(len(config.layers)):
        x = g.add(x, _attention(g, x, config, layer))
        x = g.add(x, _mlp(g, x, config, layer))
    x = g.rms_norm(g.gather_rows(x), "final_norm", eps=config.norm_eps)
    logits = g.logits(x, "embedding" if config.is_tied else "head", vocab_size=config.vocab_size)
    return g.soft_cap(logits, config.logit_soft_cap) if config.logit_soft_cap else logits


def _attention(g: Graph, x: Slot, config: DecoderConfig, layer: int) -> Slot:
    prefix = f"layers.{layer}"
    q_width, kv_width = (heads * config.head_dim for heads in (config.num_heads, config.num_kv_heads))
    x = g.rms_norm(x, f"{prefix}.attention_norm", eps=config.norm_eps)
    parts = [(f"{prefix}.q", q_width), (f"{prefix}.k", kv_width), (f"{prefix}.v", kv_width)]
    qkv = g.linear(x, parts, biases=config.has_qkv_bias)
    if config.has_qk_norm:
        qkv = g.qk_norm(qkv, f"{prefix}.q_norm", f"{prefix}.k_norm", eps=config.norm_eps)
    kind = config.layers[layer]
    q = g.rope_store(qkv, layer=layer, rope=kind.rope)
    attended = g.paged_attention(
        q,
        layer=layer,
        scale=config.attention_scale,
        window=kind.window,
        soft_cap=config.attention_soft_cap,
    )
    y = g.linear(attended, [(f"{prefix}.o", config.hidden_size)], biases=config.has_output_bias)
    return g.rms_norm(y, f"{prefix}.post_attention_norm", eps=config.norm_eps) if config.has_post_norms else y


def _mlp(g: Graph, x: Slot, config: DecoderConfig, layer: int) -> Slot:
    prefix = f"layers.{layer}"
    # Published files call the norm before the MLP by another name where there are norms after.
    norm = "pre_ffn_norm" if config.has_post_norms else "ffn_norm"
    x = g.rms_norm(x, f"{prefix}.{norm}", eps=config.norm_eps)
    parts = [(f"{prefix}.gate", config.ffn_size), (f"{prefix}.up", config.ffn_size)]
    gated = g.act_mul(g.linear(x, parts, biases=config.has_mlp_bias), config.activation)
    y = g.linear(gated, [(f"{prefix}.down", config.hidden_size)], biases=config.has_mlp_bias)
    return g.rms_norm(y, f"{prefix}.post_ffn_norm", eps=config.norm_eps) if config.has_post_norms else y
