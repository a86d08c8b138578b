"""Layers of every family run densely as the executor runs them, and factors fold without a trace."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from services.artifacts.artifact import open_artifact
from tests.unit.executors.tiny_models import VOCAB, make_model, reference_logits, save_folder
from worker.executors.weights.loader import open_model
from worker.models.registry import BuiltModel
from worker.plan.op import OpKind
from worker.quantize.awq import scale_columns
from worker.quantize.dense import DenseRunner
from worker.quantize.gram import Gram
from worker.quantize.layers import fold_of, matrices_of, split

FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gemma3"]
IDS = np.random.default_rng(3).integers(0, VOCAB, 60).tolist()


def load(family: str, folder: Path) -> tuple[BuiltModel, dict[str, Tensor]]:
    save_folder(make_model(family), folder)
    model, weights = open_model(open_artifact(folder))
    return model, {name: torch.from_numpy(weights.read(name)) for name in model.plan.parameters}


def dense_logits(model: BuiltModel, weights: dict[str, Tensor]) -> np.ndarray:
    """Run the whole plan: prologue, layers, and by hand what comes after them."""
    runner, parts = DenseRunner(model.plan), split(model.plan)
    slots: dict[int, Tensor] = {}
    for op in parts.prologue:
        if op.kind is OpKind.EMBED:
            slots[op.outputs[0]] = weights[op.weights[0]][IDS]
        else:
            runner.run([op], slots, weights)
    for layer in parts.layers:
        alone = {layer.input: slots[layer.input]}
        runner.run(layer.ops, alone, weights)
        slots[layer.output] = alone[layer.output]
    last = {parts.layers[-1].output: slots[parts.layers[-1].output]}
    for op in model.plan.ops[len(parts.prologue) + sum(len(layer.ops) for layer in parts.layers) :]:
        if op.kind is OpKind.GATHER_ROWS:
            last[op.outputs[0]] = last[op.inputs[0]]
        elif op.kind is OpKind.LOGITS:
            last[op.outputs[0]] = last[op.inputs[0]] @ weights[op.weights[0]].t()
        else:
            runner.run([op], last, weights)
    return last[model.plan.output].numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_one_by_one_give_the_reference_logits(tmp_path: Path, family: str) -> None:
    model, weights = load(family, tmp_path)
    np.testing.assert_allclose(
        dense_logits(model, weights), reference_logits(make_model(family), IDS), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_product_can_be_scaled_and_the_model_computes_what_it_did(tmp_path: Path, family: str) -> None:
    model, weights = load(family, tmp_path)
    before = dense_logits(model, weights)
    original = dict(weights)
    draw = torch.Generator().manual_seed(0)
    for layer in split(model.plan).layers:
        for linear in layer.linears:
            fold = fold_of(
                layer,
                linear,
                heads_per_group=model.plan.num_heads // model.plan.num_kv_heads,
                head_dim=model.plan.head_dim,
            )
            assert fold is not None
            names = matrices_of(linear)
            gram = Gram.empty(weights[names[0]].shape[1])
            gram.add(torch.randn(50, gram.products.shape[0], generator=draw) * (2 * torch.rand(1) + 0.1))
            gram.add(torch.randn(2, gram.products.shape[0], generator=draw) * 5)
            scale_columns(weights, names, gram, fold, bits=4, group=32)
    assert sum(weights[name] is not original[name] for name in weights) > len(weights) // 2
    np.testing.assert_allclose(dense_logits(model, weights), before, rtol=0, atol=1e-4)
