"""The native executor computes what transformers computes, and nearly so in narrow formats."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from services.domain.kv_layout import KvFormat
from tests.unit.executors.batches import Part, logits_of
from tests.unit.executors.gguf_cases import GGUF_FORMATS, cases_of, make_gguf_model
from tests.unit.executors.native_models import INSTRUCTION_SETS, load_native
from tests.unit.executors.tiny_models import (
    VOCAB,
    make_model,
    reference_logits,
    save_folder,
    save_gguf,
    save_narrow_shards,
)
from worker.executors.native.library import KV_FORMATS, Compute
from worker.executors.torch_executor import load_torch_executor

pytestmark = pytest.mark.timeout(600)
"""The first test of an instruction set compiles it."""

FORMATS = {
    **dict.fromkeys(("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0"), 2e-5),
    # Scales or offsets that are products of a float16 and an integer are rounded to float16.
    "Q5_1": 5e-3,
    "Q4_K": 2e-2,
    "Q5_K": 1e-2,
    "Q6_K": 1e-2,
}
"""What a format may cost, as a part of the largest logit."""
IDS = np.random.default_rng(0).integers(0, VOCAB, 65).tolist()


def native_logits(path: Path, cache: Path, **options: Any) -> NDArray[np.float32]:
    """Return logits at every position, of one prefill."""
    executor = load_native(path, cache, **options)
    executor.allocate(40)
    logits = logits_of(executor, [Part(IDS, 0, list(range(40)))])
    executor.close()
    return logits


def divergence(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    """Return the mean Kullback-Leibler divergence of our distributions from theirs."""
    a, b = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (theirs.astype(float), ours.astype(float)))
    return float((np.exp(a) * (a - b)).sum(-1).mean())


def assert_equal_logits(path: Path, model: PreTrainedModel, cache: Path, **options: Any) -> None:
    ours = native_logits(path, cache, compute=Compute.F32, **options)
    theirs = reference_logits(model, IDS)
    assert np.abs(theirs).max() > 0.5
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 16}),
        ("llama", {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 16}),
        ("llama", {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 24, "hidden_size": 60}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("mistral", {}),
        ("qwen2", {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 112}),
        ("qwen3", {"head_dim": 32}),
        ("gemma3", {}),
    ],
)
def test_a_folder_gives_the_logits_of_transformers(
    family: str, overrides: dict[str, Any], instruction_set: str, tmp_path: Path
) -> None:
    model = make_model(family, **overrides)
    path = save_folder(model, tmp_path / "model")
    assert_equal_logits(path, model, tmp_path, instruction_set=instruction_set)


@pytest.mark.failure("B106")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_folder_of_sixteen_bits_in_several_files_gives_the_logits_of_transformers(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    model = make_model("llama", num_attention_heads=8, num_key_value_heads=2, head_dim=16)
    assert_equal_logits(save_narrow_shards(model, tmp_path / "model", dtype), model, tmp_path)


def is_quick(family: str, kind: str, num_kv_heads: int) -> bool:
    return num_kv_heads == 2 and (family == "llama" or kind in ("Q4_1", "Q6_K"))


@pytest.mark.parametrize(("family", "kind", "num_kv_heads"), cases_of(FORMATS, is_quick=is_quick))
def test_a_gguf_gives_the_logits_of_transformers(
    family: str, kind: str, num_kv_heads: int, tmp_path: Path
) -> None:
    model = make_gguf_model(family, num_kv_heads)
    path = save_gguf(model, tmp_path / "tiny.gguf", kind)
    ours, theirs = native_logits(path, tmp_path, compute=Compute.F32), reference_logits(model, IDS)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=FORMATS[kind] * np.abs(theirs).max())


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_formats_may_differ_inside_one_product(instruction_set: str, tmp_path: Path) -> None:
    model = make_model("llama", hidden_size=256, intermediate_size=256, num_attention_heads=8)
    kinds = {"k_proj": "F16", "v_proj": "BF16", "up_proj": "Q4_1", "down_proj": "F32"}
    path = save_gguf(model, tmp_path / "tiny.gguf", "Q8_0", kinds)
    assert_equal_logits(path, model, tmp_path, instruction_set=instruction_set)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"compute": Compute.F32, "kv_format": KvFormat.BF16}, 2e-3),
        ({"compute": Compute.F32, "kv_format": KvFormat.INT8}, 5e-3),
        ({"compute": Compute.INT8, "kv_format": KvFormat.F32}, 1e-2),
        ({"compute": Compute.INT8, "kv_format": KvFormat.INT8}, 1e-2),
    ],
    ids=lambda value: "-".join(str(part.name) for part in value.values()) if isinstance(value, dict) else "",
)
def test_narrow_numbers_cost_little(
    options: dict[str, Any], limit: float, instruction_set: str, tmp_path: Path
) -> None:
    model = make_model("llama", hidden_size=256, intermediate_size=256, num_attention_heads=8)
    path = save_gguf(model, tmp_path / "tiny.gguf", "Q4_0")
    ours = native_logits(path, tmp_path, instruction_set=instruction_set, **options)
    assert 0 < divergence(ours, reference_logits(model, IDS)) < limit


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("page_size", [16, 64])
def test_a_page_takes_what_the_layout_says(kv_format: KvFormat, page_size: int, tmp_path: Path) -> None:
    path = save_folder(make_model("llama"), tmp_path / "model")
    executor = load_native(path, tmp_path, kv_format=kv_format, page_size=page_size)
    # 2 layers, keys and values, 2 heads of 16; int8 has a float32 scale beside each row.
    row = {KvFormat.F32: 64, KvFormat.BF16: 32, KvFormat.INT8: 20}[kv_format]
    assert executor.profile.page_bytes == 2 * 2 * 2 * page_size * row
    assert executor._library.call("page_bytes", executor._engine) == executor.profile.page_bytes


def test_numerics_and_namespace_tell_apart_what_gives_other_bits(tmp_path: Path) -> None:
    path = save_gguf(make_model("llama"), tmp_path / "a.gguf", "Q8_0")
    other = save_gguf(make_model("llama", seed=1), tmp_path / "b.gguf", "Q8_0")
    variants = [
        load_native(path, tmp_path),
        load_native(path, tmp_path, compute=Compute.F32),
        load_native(path, tmp_path, kv_format=KvFormat.INT8),
        load_native(path, tmp_path, instruction_set="portable"),
        load_native(other, tmp_path),
    ]
    assert len({executor.profile.numerics for executor in variants}) == len(variants)
    same = load_native(path, tmp_path, num_threads=2, page_size=64).profile
    assert same.numerics == variants[0].profile.numerics
    assert same.namespace != variants[0].profile.namespace, "pages of another size cannot be exchanged"


def test_the_profile_names_the_kernels_that_run(tmp_path: Path) -> None:
    path = save_gguf(make_model("llama"), tmp_path / "a.gguf", "Q4_0", {"down_proj": "F16"})
    uses = {use.layer_kind: use for use in load_native(path, tmp_path).profile.kernels}
    assert set(uses) == {"embedding", "q+k+v", "attention", "o", "gate+up", "down", "logits"}
    assert (uses["o"].kernel, uses["down"].kernel) == ("u4_i8", "f16_f32")
    assert (uses["embedding"].kernel, uses["attention"].kernel) == ("u4_f32", "kv_f32")
    assert (uses["o"].count, uses["attention"].count, uses["logits"].count) == (2, 2, 1)


@pytest.mark.parametrize("compute", list(Compute))
@pytest.mark.parametrize("kind", GGUF_FORMATS)
def test_no_quantised_weight_is_served_by_a_product_of_floats(
    kind: str, compute: Compute, tmp_path: Path
) -> None:
    path = save_gguf(make_gguf_model("llama", 2), tmp_path / "a.gguf", kind)
    uses = load_native(path, tmp_path, compute=compute).profile.kernels
    kernels = {use.layer_kind: use.kernel for use in uses if use.layer_kind not in ("attention", "embedding")}
    assert set(kernels) == {"q+k+v", "o", "gate+up", "down", "logits"}
    floats = {"F32": "f32", "F16": "f16_f32", "BF16": "bf16_f32"}
    codes = f"u{4 if kind in ('Q4_0', 'Q4_1', 'Q4_K') else 8}_{'i8' if compute is Compute.INT8 else 'f32'}"
    assert set(kernels.values()) == {floats.get(kind, codes)}


@pytest.mark.parametrize("is_tied", [False, True])
def test_torch_names_the_same_kinds_of_layers(is_tied: bool, tmp_path: Path) -> None:
    path = save_folder(make_model("llama", tie_word_embeddings=is_tied), tmp_path / "model")
    native = load_native(path, tmp_path).profile.kernels
    torch = load_torch_executor(path, model_name="tiny", num_threads=1).profile.kernels
    assert {(use.layer_kind, use.count) for use in native} == {(use.layer_kind, use.count) for use in torch}
    assert {use.kernel for use in torch} == {"torch_float32"}
