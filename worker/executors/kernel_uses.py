"""Names what runs the layers of a plan, in one way for all executors, and counts it for the metrics.

Knows operations and the roles of their weights; knows nothing of kernels: an executor says what it binds.
"""

from collections import Counter
from collections.abc import Iterable

from worker.executors.base import KernelUse
from worker.models.tensor_names import role_of
from worker.plan.op import Op, OpKind

_KINDS = {
    OpKind.EMBED: "embedding",
    OpKind.EMBED_SHARD: "embedding",
    OpKind.PAGED_ATTENTION: "attention",
    OpKind.LOGITS: "logits",
}
"""Operations that are one kind of layer whatever they read. A tied head is `logits`, too."""


def is_named(op: Op) -> bool:
    """Say whether the metrics name this operation's kernel: it reads matrices, or KV."""
    return op.kind in _KINDS or op.kind is OpKind.LINEAR


def layer_kind(op: Op) -> str:
    """Return what the metrics call the layers that `op`, one that is named, is of: `attention`, `q+k+v`."""
    assert is_named(op), "norms and the like have no name of their own"
    return _KINDS.get(op.kind) or "+".join(role_of(name) for name in op.weights[: op.num_matrices])


def count_uses(bound: Iterable[tuple[Op, str]]) -> tuple[KernelUse, ...]:
    """Count operations, each with the kernel that runs it, by kind of layer and kernel."""
    counts = Counter((layer_kind(op), kernel) for op, kernel in bound)
    return tuple(KernelUse(kind, kernel, count) for (kind, kernel), count in counts.items())
