"""Cuts a plan for ranks that compute one model together: what each rank runs, and which part of each weight.

Products whose outputs are heads or the MLP's gates keep some of their columns (rows of the weight), those
that read them keep the matching inputs (columns of the weight) and their results are summed over all ranks;
embedding and head keep some ids each. Norms, sums and what lies between are computed by every rank alike.
Knows plans alone; nothing of files, devices or how ranks reach each other.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from worker.plan.op import Attribute, Op, OpKind, Plan, Rows, Slot


class CannotShard(ValueError):
    """The model does not divide over so many ranks; the message names what does not."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows or columns."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class WeightPart:
    """What a rank holds of one parameter; None: all rows, or all columns."""

    rows: Span | None = None
    columns: Span | None = None


@dataclass(frozen=True, slots=True)
class ShardedPlan:
    """One rank's share of a plan."""

    plan: Plan
    """Its parameters have the shapes of their parts, and its heads are the rank's own."""
    parts: Mapping[str, WeightPart]
    """By parameter; one that is not here is held whole."""


def shard(plan: Plan, *, rank: int, size: int) -> ShardedPlan:
    """Return what `rank` of `size` computes. All ranks' plans have the same operations and slots.

    Where there are fewer key-value heads than ranks, neighbouring ranks hold the same one.

    Worked number: 32 query and 8 key-value heads of 128, 4 ranks: rank 1 has query heads 8 to 15, key-value
    heads 2 and 3, so rows 1024 to 2047 of q and 256 to 511 of k and v. Over 16 ranks rank 5 has query heads
    10 and 11 and key-value head 2.

    Raises:
        CannotShard: Heads, MLP or vocabulary do not divide.
    """
    assert 0 <= rank < size
    return _Cut(plan, rank, size).run()


class _Cut:
    """The plan of one rank, operation by operation."""

    def __init__(self, plan: Plan, rank: int, size: int) -> None:
        self._plan, self._rank, self._size = plan, rank, size
        self._heads = self._share("query heads", plan.num_heads)
        self._kv_heads = self._kv_share()
        self._readers = _readers(plan)
        self._ops: list[Op] = []
        self._slots: list[Slot] = []
        self._new: dict[int, int] = {}
        """Slot of the whole plan -> the rank's slot of it."""
        self._is_cut: set[int] = set()
        """Slots of the whole plan of which a rank has some columns only."""
        self._parts: dict[str, WeightPart] = {}

    def run(self) -> ShardedPlan:
        for op in self._plan.ops:
            self._take(op)
        plan = replace(
            self._plan,
            ops=tuple(self._ops),
            slots=tuple(self._slots),
            parameters={name: self._shape(name) for name in self._read_parameters()},
            output=self._new[self._plan.output],
            num_heads=self._heads.size,
            num_kv_heads=self._kv_heads.size,
        )
        return ShardedPlan(plan, self._parts)

    def _take(self, op: Op) -> None:
        match op.kind:
            case OpKind.EMBED:
                self._take_embed(op)
            case OpKind.LOGITS:
                self._take_logits(op)
            case OpKind.LINEAR if op.inputs[0] in self._is_cut:
                self._take_row_parallel(op)
            case OpKind.LINEAR if self._readers[op.outputs[0]] & {OpKind.QK_NORM, OpKind.ROPE_STORE}:
                self._take_column_parallel(
                    op, [self._heads, self._kv_heads, self._kv_heads], unit=self._plan.head_dim
                )
            case OpKind.LINEAR if OpKind.ACT_MUL in self._readers[op.outputs[0]]:
                width = self._plan.slots[op.outputs[0]].width // 2
                span = self._share(f"columns of {op.weights[0]}", width)
                self._take_column_parallel(op, [span, span], unit=1)
            case OpKind.QK_NORM | OpKind.ROPE_STORE | OpKind.PAGED_ATTENTION | OpKind.ACT_MUL:
                self._is_cut.update(op.outputs)
                width = self._slots[self._new[op.inputs[0]]].width
                heads = self._heads.size * self._plan.head_dim
                kept = {OpKind.ROPE_STORE: heads, OpKind.ACT_MUL: width // 2}.get(op.kind, width)
                self._emit(op, kept)
            case _:
                assert not self._is_cut.intersection(op.inputs), f"{op.kind} reads whole rows"
                self._emit(op, self._plan.slots[op.outputs[0]].width)

    def _take_embed(self, op: Op) -> None:
        (name,) = op.weights
        span = self._share(f"ids of {name}", self._plan.parameters[name][0])
        self._hold(name, WeightPart(rows=span))
        width = self._plan.slots[op.outputs[0]].width
        part = self._add(OpKind.EMBED_SHARD, (), "T", width, weights=(name,), first=span.start)
        self._new[op.outputs[0]] = self._add(OpKind.ALL_REDUCE, (part,), "T", width)

    def _take_logits(self, op: Op) -> None:
        (name,) = op.weights
        whole = self._plan.slots[op.outputs[0]]
        span = self._share(f"ids of {name}", whole.width)
        self._hold(name, WeightPart(rows=span))
        part = self._add(OpKind.LOGITS, self._inputs(op), whole.rows, span.size, weights=op.weights)
        self._new[op.outputs[0]] = self._add(OpKind.ALL_GATHER, (part,), whole.rows, whole.width)

    def _take_column_parallel(self, op: Op, spans: list[Span], *, unit: int) -> None:
        """Keep `spans` of the matrices' rows, counted in `unit`s, and of their biases."""
        assert len(op.weights) == len(spans) * (1 + op.integer("biases"))
        rows = [Span(span.start * unit, span.stop * unit) for span in spans]
        for name, span in zip(op.weights, rows * 2, strict=False):
            self._hold(name, WeightPart(rows=span))
        self._is_cut.update(op.outputs)
        self._emit(op, sum(span.size for span in rows))

    def _take_row_parallel(self, op: Op) -> None:
        """Keep the columns that belong to the rank's part of the input; sum what all ranks make of theirs."""
        name, *biases = op.weights
        kept = self._slots[self._new[op.inputs[0]]].width
        self._hold(name, WeightPart(columns=Span(self._rank * kept, (self._rank + 1) * kept)))
        whole = self._plan.slots[op.outputs[0]]
        # A bias is added once: by rank 0.
        has_biases = int(bool(biases) and self._rank == 0)
        weights = op.weights if has_biases else (name,)
        part = self._add(
            OpKind.LINEAR, self._inputs(op), whole.rows, whole.width, weights=weights, biases=has_biases
        )
        self._new[op.outputs[0]] = self._add(OpKind.ALL_REDUCE, (part,), whole.rows, whole.width)

    def _emit(self, op: Op, width: int) -> None:
        """Take an operation over as it is, its result `width` wide."""
        (output,) = op.outputs
        rows = self._plan.slots[output].rows
        attributes = dict(op.attributes)
        self._new[output] = self._add(
            op.kind, self._inputs(op), rows, width, weights=op.weights, **attributes
        )

    def _add(
        self,
        kind: OpKind,
        inputs: tuple[int, ...],
        rows: Rows,
        width: int,
        *,
        weights: tuple[str, ...] = (),
        **attributes: Attribute,
    ) -> int:
        slot = Slot(len(self._slots), rows, width)
        self._slots.append(slot)
        self._ops.append(Op(kind, inputs, (slot.index,), weights, tuple(attributes.items())))
        return slot.index

    def _inputs(self, op: Op) -> tuple[int, ...]:
        return tuple(self._new[index] for index in op.inputs)

    def _hold(self, name: str, part: WeightPart) -> None:
        known = self._parts.setdefault(name, part)
        assert known == part, f"parameter {name} is cut in two ways"

    def _share(self, what: str, count: int) -> Span:
        """Return the rank's part of what every rank has as much of."""
        if count % self._size:
            raise CannotShard(f"{count} {what} do not divide by {self._size} ranks")
        share = count // self._size
        return Span(self._rank * share, (self._rank + 1) * share)

    def _kv_share(self) -> Span:
        count = self._plan.num_kv_heads
        if count >= self._size:
            return self._share("key-value heads", count)
        if self._size % count:
            raise CannotShard(f"{self._size} ranks do not divide by {count} key-value heads")
        head = self._rank * count // self._size
        return Span(head, head + 1)

    def _shape(self, name: str) -> tuple[int, ...]:
        rows, *columns = self._plan.parameters[name]
        part = self._parts.get(name, WeightPart())
        if part.columns is not None:
            columns = [part.columns.size]
        return (rows if part.rows is None else part.rows.size, *columns)

    def _read_parameters(self) -> list[str]:
        read = {name for op in self._ops for name in op.weights}
        return [name for name in self._plan.parameters if name in read]


def _readers(plan: Plan) -> dict[int, set[OpKind]]:
    """Return which kinds of operations read each slot."""
    readers: dict[int, set[OpKind]] = {slot.index: set() for slot in plan.slots}
    for op in plan.ops:
        for index in op.inputs:
            readers[index].add(op.kind)
    return readers
