"""What the rows of the table move and compute: bytes and operations of kernels, steps and models.

Pure numbers; knows nothing of devices or of how long anything took.
"""

from collections.abc import Iterable, Mapping

from services.domain.kv_layout import KvLayout


def kv_bytes(layout: KvLayout, *, num_sequences: int, context: int) -> int:
    """Return the bytes of keys, values and scales that decoding one token of each sequence reads.

    Worked number: one layer of 8 heads of 128, 64 sequences of 8,192: bf16 2,147,483,648; int8 1,107,296,256.
    """
    return num_sequences * context * layout.page_bytes // layout.page_size


def causal_attention_flops(*, num_tokens: int, num_heads: int, head_dim: int) -> int:
    """Return the operations of the two products of causal attention: a token sees itself and all before it.

    Worked number: 8,192 tokens, 32 heads of 128: 549,822,922,752.
    """
    seen = num_tokens * (num_tokens + 1) // 2
    return 2 * 2 * seen * num_heads * head_dim


def product_operations(*, num_rows: int, out_features: int, in_features: int) -> int:
    """Return the multiplications and additions of x @ W^T.

    Worked number: 4096, 8192, 8192: 549,755,813,888.
    """
    return 2 * num_rows * out_features * in_features


def product_bytes(*, weight_bytes: int, num_rows: int, out_features: int, in_features: int) -> int:
    """Return what a product of 16-bit rows with codes reads and writes: W, x and y, each once.

    Worked number: 8192 x 8192 in 4 bits with groups of 128 (34,603,008 bytes), 16 rows: 35,127,296.
    """
    return weight_bytes + 2 * num_rows * (in_features + out_features)


def int4_bytes(*, out_features: int, in_features: int, group: int) -> int:
    """Return the bytes of 4-bit codes and their 16-bit scales.

    Worked number: 8192 x 8192, groups of 128: 33,554,432 + 1,048,576.
    """
    return out_features * in_features // 2 + 2 * out_features * (in_features // group)


def weights_read_bytes(parameters: Mapping[str, tuple[int, ...]], *, group: int | None = None) -> int:
    """Return the bytes of weights that a decode step of few rows reads.

    Of the embedding table a step reads a row for each token, which is nothing beside the rest.

    Args:
        parameters: Shapes by name, as a plan has them.
        group: Columns that share a scale where layers are 4-bit codes (the head stays 16 bits); None: all
            matrices are 16 bits. Vectors are float32 always.
    """
    return sum(
        _parameter_bytes(name, shape, group) for name, shape in parameters.items() if name != "embedding"
    )


def _parameter_bytes(name: str, shape: tuple[int, ...], group: int | None) -> int:
    if len(shape) == 1:
        return 4 * shape[0]
    out_features, in_features = shape
    if group is None or name == "head":
        return 2 * out_features * in_features
    return int4_bytes(out_features=out_features, in_features=in_features, group=group)


def idle_and_span(busy: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return how long nothing ran between the first start and the last end, and that whole time.

    Worked number: (0, 4), (3, 5), (7, 8): 2 idle of 8.

    Args:
        busy: Start and end of everything that a device ran, in any order; they may overlap.
    """
    intervals = sorted(busy)
    if not intervals:
        return 0.0, 0.0
    idle, reached = 0.0, intervals[0][0]
    for start, end in intervals:
        idle += max(0.0, start - reached)
        reached = max(reached, end)
    return idle, reached - intervals[0][0]
