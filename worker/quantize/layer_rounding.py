"""Rounds the matrices of one layer by any of the methods.

Knows a layer's values and its inputs; knows nothing of files or of other layers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.plan.op import Op, Plan
from worker.quantize.awq import scale_columns
from worker.quantize.dense import DenseRunner
from worker.quantize.gptq import round_gptq
from worker.quantize.gram import Gram
from worker.quantize.layers import Layer, fold_of, matrices_of
from worker.quantize.rounding import Rounded, round_clipped, round_nearest
from worker.quantize.settings import Method, QuantizeSettings

Inputs = Callable[[], Iterator[Tensor]]
"""Gives what enters the layer, one sequence [tokens, width] after the other, as often as it is called."""


@dataclass(frozen=True, slots=True)
class RoundedLayer:
    """A layer with its matrices quantised."""

    matrices: dict[str, Rounded]
    changed: dict[str, Tensor]
    """Parameters in floats that are no longer the source's."""
    values: dict[str, Tensor]
    """Every parameter, dequantised: what the layer now computes with."""
    errors: dict[str, float]
    """Per matrix, see `LayerDone`."""


class LayerRounder:
    """Rounds layers of one model by one method."""

    def __init__(self, plan: Plan, settings: QuantizeSettings, runner: DenseRunner) -> None:
        self._heads_per_group = plan.num_heads // plan.num_kv_heads
        self._head_dim = plan.head_dim
        self._settings = settings
        self._runner = runner

    def round_layer(self, layer: Layer, values: dict[str, Tensor], inputs: Inputs | None) -> RoundedLayer:
        """Return the layer rounded.

        Args:
            layer: Its operations.
            values: Every parameter, float32; taken over.
            inputs: What enters it over the calibration text; None without calibration.
        """
        original = dict(values)
        result = RoundedLayer({}, {}, values, {})
        grams: dict[Op, Gram] = {}
        if self._settings.method is Method.AWQ:
            assert inputs is not None
            grams = self._scaled_grams(layer, values, inputs)
        for linear in layer.linears:
            if self._settings.method is Method.GPTQ:
                # Inputs as they are behind what is already rounded: errors before can be made up for.
                assert inputs is not None
                grams = self._grams(layer, [linear], values, inputs)
            self._round_linear(linear, grams.get(linear), result)
        result.changed.update({name: value for name, value in values.items() if value is not original[name]})
        for name in result.matrices:
            del result.changed[name]
        return result

    def _round_linear(self, linear: Op, gram: Gram | None, result: RoundedLayer) -> None:
        """Round the matrices of one product together: they share its inputs."""
        names = matrices_of(linear)
        weight = torch.cat([result.values[name] for name in names])
        rounded = self._round(weight, gram)
        start = 0
        for name in names:
            before = result.values[name]
            part = rounded.rows(start, start + len(before))
            start += len(before)
            after = part.values()
            result.errors[name] = _relative_error(before, after, gram)
            result.matrices[name], result.values[name] = part, after

    def _round(self, weight: Tensor, gram: Gram | None) -> Rounded:
        bits, group = self._settings.bits, self._settings.group
        if gram is None:
            return round_nearest(weight, bits=bits, group=group)
        if self._settings.method is Method.AWQ:
            return round_clipped(weight, gram, bits=bits, group=group)
        return round_gptq(weight, gram, bits=bits, group=group)

    def _scaled_grams(self, layer: Layer, values: dict[str, Tensor], inputs: Inputs) -> dict[Op, Gram]:
        """Scale the columns of every product that can be scaled; return the sums over its inputs."""
        grams = self._grams(layer, layer.linears, values, inputs)
        for linear in layer.linears:
            fold = fold_of(layer, linear, heads_per_group=self._heads_per_group, head_dim=self._head_dim)
            if fold is not None:
                grams[linear] = scale_columns(
                    values,
                    matrices_of(linear),
                    grams[linear],
                    fold,
                    bits=self._settings.bits,
                    group=self._settings.group,
                )
        return grams

    def _grams(
        self, layer: Layer, linears: Sequence[Op], values: dict[str, Tensor], inputs: Inputs
    ) -> dict[Op, Gram]:
        """Run the layer as far as needed and sum over the inputs of some of its products."""
        grams: dict[Op, Gram] = {}
        last = layer.ops.index(linears[-1])
        for x in inputs():
            slots = {layer.input: x}
            self._runner.run(layer.ops[:last], slots, values)
            for linear in linears:
                rows = slots[linear.inputs[0]]
                grams.setdefault(linear, Gram.empty(rows.shape[1])).add(rows)
        return grams


def _relative_error(before: Tensor, after: Tensor, gram: Gram | None) -> float:
    if gram is None:
        return float((after - before).norm() / before.norm().clamp(min=1e-30))
    return float((gram.error(after - before) / max(gram.error(before), 1e-30)) ** 0.5)
