"""The real model in torch: the ids of transformers, and bits that no schedule changes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from services.artifacts.artifact import open_artifact
from tests.unit.executors.batches import Part, logits_of
from tests.unit.executors.tiny_models import unpermute
from worker.executors.torch_executor import TorchExecutor, load_torch_executor
from worker.models.tensor_names import WeightFormat, file_name_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return",
    "日本の首都は",
    "Once upon a time, in a village by the sea, there lived",
]
NUM_STEPS = 24
MARGIN = 1e-3
"""Two best logits nearer than this may swap by rounding alone."""


@pytest.fixture(scope="module")
def executor(model_path: Path) -> TorchExecutor:
    executor = load_torch_executor(model_path, model_name="real")
    executor.allocate(160)
    return executor


@pytest.fixture(scope="module")
def prompts(model_path: Path) -> list[list[int]]:
    tokenizer = open_artifact(model_path).tokenizer
    return [list(tokenizer.encode_text(text, add_bos=False)) for text in PROMPTS]


@pytest.fixture(scope="module")
def reference(model_path: Path) -> LlamaForCausalLM:
    """Transformers' model with weights that the gguf package dequantised."""
    config = dict(open_artifact(model_path).config)
    theta = config.pop("rope_theta")
    config.pop("rope_scaling")
    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(**config, rope_parameters={"rope_type": "default", "rope_theta": theta})
        )
    stored = {tensor.name: tensor for tensor in GGUFReader(model_path).tensors}
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    state = {}
    roles = ["attention_norm", "q", "k", "v", "o", "ffn_norm", "gate", "up", "down"]
    layers = range(config["num_hidden_layers"])
    parameters = ["embedding", "final_norm", *(f"layers.{n}.{role}" for n in layers for role in roles)]
    for parameter in parameters:
        tensor = stored[file_name_of(parameter, WeightFormat.GGUF)]
        values: NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type)
        if (role := parameter.rsplit(".", 1)[-1]) in heads:
            values = unpermute(values, heads[role])
        state[file_name_of(parameter, WeightFormat.HUGGING_FACE)] = torch.from_numpy(values.copy())
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model.eval()


def test_greedy_ids_are_those_of_transformers(
    executor: TorchExecutor, prompts: list[list[int]], reference: LlamaForCausalLM
) -> None:
    num_compared = 0
    for prompt in prompts:
        ids, pages = list(prompt), list(range(20))
        logits = logits_of(executor, [Part(ids, 0, pages)], every_row=False)[0]
        for _ in range(NUM_STEPS):
            with torch.no_grad():
                theirs = reference(torch.tensor([ids])).logits[0, -1].numpy()
            np.testing.assert_allclose(logits, theirs, rtol=0, atol=2e-3)
            second, best = np.sort(theirs)[-2:]
            if best - second < MARGIN:
                break
            assert logits.argmax() == theirs.argmax()
            num_compared += 1
            ids.append(int(logits.argmax()))
            logits = logits_of(executor, [Part(ids[-1:], len(ids) - 1, pages)])[0]
    assert num_compared > NUM_STEPS


def test_no_schedule_changes_a_bit(executor: TorchExecutor, prompts: list[list[int]]) -> None:
    prompts = [*prompts, (prompts[1] + prompts[2] + prompts[3]) * 4]
    expected = []
    for prompt in prompts:
        pages = list(range(-(-len(prompt) // 16)))
        expected.append(logits_of(executor, [Part(prompt, 0, pages)]))
    rng = np.random.default_rng(0)
    pages_of = np.split(rng.permutation(160), 5)
    done = [0] * 5
    while any(done[i] < len(prompt) for i, prompt in enumerate(prompts)):
        owners = [i for i in rng.permutation(5) if done[i] < len(prompts[i])]
        parts = []
        for i in owners:
            count = min(len(prompts[i]) - done[i], int(rng.choice([1, 3, 16, 40])))
            ids = prompts[i][done[i] : done[i] + count]
            parts.append(Part(ids, done[i], pages_of[i].tolist()))
        logits = logits_of(executor, parts)
        start = 0
        for i, part in zip(owners, parts, strict=True):
            end = start + len(part.ids)
            assert np.array_equal(logits[start:end], expected[i][done[i] : done[i] + len(part.ids)])
            start, done[i] = end, done[i] + len(part.ids)
