"""Builds a plan: what a family's `forward(g, config)` talks to, once, at load.

Knows shapes and checks them; knows nothing of families or of how an operation is computed.
"""

from collections.abc import Sequence

from worker.plan.op import Activation, Attribute, Op, OpKind, Plan, RopeTable, Rows, Slot


class Graph:
    """Collects operations. Slots are immutable: every call returns a new one."""

    def __init__(
        self, *, num_heads: int, num_kv_heads: int, head_dim: int, ropes: Sequence[RopeTable]
    ) -> None:
        self._num_heads = num_heads
        self._num_kv_heads = num_kv_heads
        self._head_dim = head_dim
        self._ropes = tuple(ropes)
        self._ops: list[Op] = []
        self._slots: list[Slot] = []
        self._parameters: dict[str, tuple[int, ...]] = {}
        self._num_layers = 0

    @property
    def _qkv_width(self) -> int:
        return (self._num_heads + 2 * self._num_kv_heads) * self._head_dim

    def embed(self, name: str, *, vocab_size: int, width: int) -> Slot:
        """Look the step's ids up in a table."""
        weight = self._parameter(name, (vocab_size, width))
        return self._add(OpKind.EMBED, (), "T", width, weights=(weight,))

    def rms_norm(self, x: Slot, name: str, *, eps: float) -> Slot:
        """Scale rows of x to unit mean square, then by a weight per column."""
        weight = self._parameter(name, (x.width,))
        return self._add(OpKind.RMS_NORM, (x,), x.rows, x.width, weights=(weight,), eps=eps)

    def linear(self, x: Slot, matrices: Sequence[tuple[str, int]], *, biases: bool = False) -> Slot:
        """Multiply x by matrices of the given output widths, results side by side.

        Args:
            x: [T, in].
            matrices: Name and output width of each. A bias is named `<name>_bias`.
            biases: Whether every one of them has a bias.
        """
        names = [self._parameter(name, (width, x.width)) for name, width in matrices]
        if biases:
            names += [self._parameter(f"{name}_bias", (width,)) for name, width in matrices]
        width = sum(width for _, width in matrices)
        return self._add(OpKind.LINEAR, (x,), x.rows, width, weights=tuple(names), biases=int(biases))

    def qk_norm(self, qkv: Slot, q_name: str, k_name: str, *, eps: float) -> Slot:
        """Normalise each q and k head of a qkv slot; v passes through."""
        weights = tuple(self._parameter(name, (self._head_dim,)) for name in (q_name, k_name))
        return self._add(OpKind.QK_NORM, (qkv,), "T", self._qkv_width, weights=weights, eps=eps)

    def rope_store(self, qkv: Slot, *, layer: int, rope: int) -> Slot:
        """Rotate q and k by table `rope`, store k and v of this step in the layer's KV, return q."""
        assert qkv.width == self._qkv_width, "a qkv slot holds all q, then k, then v heads"
        assert rope in range(len(self._ropes)), f"there is no rope table {rope}"
        self._num_layers = max(self._num_layers, layer + 1)
        width = self._num_heads * self._head_dim
        return self._add(OpKind.ROPE_STORE, (qkv,), "T", width, layer=layer, rope=rope)

    def paged_attention(self, q: Slot, *, layer: int, scale: float, window: int, soft_cap: float) -> Slot:
        """Attend from q to the sequence's keys and values up to and including each row's own.

        Args:
            q: [T, heads * head_dim].
            layer: Whose keys and values.
            scale: Factor on the products of queries and keys.
            window: Keys a row sees, its own the last of them; 0 is all.
            soft_cap: Bound of the scaled scores; 0 is none.
        """
        return self._add(
            OpKind.PAGED_ATTENTION,
            (q,),
            "T",
            q.width,
            layer=layer,
            scale=scale,
            window=window,
            soft_cap=soft_cap,
        )

    def act_mul(self, x: Slot, activation: Activation) -> Slot:
        """Gate the second half of x by the activation of its first half."""
        return self._add(OpKind.ACT_MUL, (x,), x.rows, x.width // 2, activation=int(activation))

    def add(self, x: Slot, y: Slot) -> Slot:
        """Add two slots of one shape."""
        assert (x.rows, x.width) == (y.rows, y.width), "add takes equal shapes"
        return self._add(OpKind.ADD, (x, y), x.rows, x.width)

    def scale(self, x: Slot, factor: float) -> Slot:
        """Multiply x by a number."""
        return self._add(OpKind.SCALE, (x,), x.rows, x.width, factor=factor)

    def soft_cap(self, x: Slot, cap: float) -> Slot:
        """Bend x smoothly into the open interval from -cap to cap."""
        return self._add(OpKind.SOFT_CAP, (x,), x.rows, x.width, cap=cap)

    def gather_rows(self, x: Slot) -> Slot:
        """Keep the rows whose logits are wanted."""
        return self._add(OpKind.GATHER_ROWS, (x,), "O", x.width)

    def logits(self, x: Slot, name: str, *, vocab_size: int) -> Slot:
        """Score every id of the vocabulary. The weight may be one that `embed` named (tied)."""
        weight = self._parameter(name, (vocab_size, x.width))
        return self._add(OpKind.LOGITS, (x,), x.rows, vocab_size, weights=(weight,))

    def finish(self, output: Slot) -> Plan:
        """Return the plan whose result is `output`."""
        return Plan(
            ops=tuple(self._ops),
            slots=tuple(self._slots),
            parameters=dict(self._parameters),
            output=output.index,
            num_layers=self._num_layers,
            num_heads=self._num_heads,
            num_kv_heads=self._num_kv_heads,
            head_dim=self._head_dim,
            ropes=self._ropes,
        )

    def _parameter(self, name: str, shape: tuple[int, ...]) -> str:
        known = self._parameters.setdefault(name, shape)
        assert known == shape, f"parameter {name} is used with shapes {known} and {shape}"
        return name

    def _add(
        self,
        kind: OpKind,
        inputs: tuple[Slot, ...],
        rows: Rows,
        width: int,
        *,
        weights: tuple[str, ...] = (),
        **attributes: Attribute,
    ) -> Slot:
        slot = Slot(len(self._slots), rows, width)
        self._slots.append(slot)
        indices = tuple(x.index for x in inputs)
        self._ops.append(Op(kind, indices, (slot.index,), weights, tuple(attributes.items())))
        return slot
