"""The Triton executor, interpreted, computes what the torch one does; bits have a file of their own."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from services.domain.kv_layout import KvFormat
from tests.unit.executors.batches import Part, logits_of
from tests.unit.executors.tiny_models import VOCAB, make_model, save_folder, save_gguf
from worker.executors import triton_executor, triton_plan
from worker.executors.torch_executor import load_torch_executor
from worker.executors.triton_executor import TritonExecutor, load_triton_executor

pytestmark = pytest.mark.timeout(600)
"""The interpreter takes a tenth of a second for each product."""

IDS = np.random.default_rng(0).integers(0, VOCAB, 40).tolist()
slow = pytest.mark.slow
PAGES = [[5, 1, 7], [2, 4, 0]]


def load(
    path: Path,
    *,
    dtype: torch.dtype = torch.float32,
    kv_format: KvFormat = KvFormat.F32,
    int8_rows: bool = False,
    vendor_products: bool = False,
) -> TritonExecutor:
    executor = load_triton_executor(
        path,
        model_name="tiny",
        dtype=dtype,
        kv_format=kv_format,
        int8_rows=int8_rows,
        vendor_products=vendor_products,
        device="cpu",
    )
    executor.allocate(8)
    return executor


def products_of(executor: TritonExecutor) -> set[str]:
    """Return the kernels that multiply with weights."""
    return {
        use.kernel for use in executor.profile.kernels if use.layer_kind not in ("embedding", "attention")
    }


@pytest.mark.parametrize(
    "family",
    ["llama", *(pytest.param(name, marks=slow) for name in ("gemma3", "mistral", "qwen2", "qwen3"))],
)
def test_logits_equal_the_torch_executors(family: str, tmp_path: Path) -> None:
    """A chunk beside another sequence's, then the rest of it, then one token of each."""
    path = save_folder(make_model(family), tmp_path)
    ours, theirs = load(path), load_torch_executor(path, model_name="tiny", num_threads=1)
    theirs.allocate(8)
    for parts in (
        [Part(IDS[:21], 0, PAGES[0]), Part(IDS[7:16], 0, PAGES[1])],
        [Part(IDS[21:30], 21, PAGES[0]), Part(IDS[16:17], 9, PAGES[1])],
        [Part(IDS[30:31], 30, PAGES[0]), Part(IDS[17:18], 10, PAGES[1])],
    ):
        expected = logits_of(theirs, parts)
        assert np.abs(expected).max() > 0.5
        np.testing.assert_allclose(logits_of(ours, parts), expected, rtol=0, atol=1e-4)


def test_the_vendors_products_are_as_near_and_marked(tmp_path: Path) -> None:
    """With the biases of Qwen 2; no other boot promises the same bits, while pages may be anybody's."""
    path = save_folder(make_model("qwen2"), tmp_path)
    ours, again = load(path, vendor_products=True), load(path, vendor_products=True)
    products = {(use.layer_kind, use.kernel) for use in ours.profile.kernels}
    others = {"embedding": "triton_fp32", "attention": "triton_kv-f32", "logits": "triton_fp32"}
    assert products == {
        *others.items(),
        *((kind, "vendor_fp32") for kind in ("q+k+v", "o", "gate+up", "down")),
    }
    assert {(use.layer_kind, use.count) for use in ours.profile.kernels} == {
        (use.layer_kind, use.count)
        for use in load_torch_executor(path, model_name="tiny", num_threads=1).profile.kernels
    }
    assert not ours.profile.is_batch_invariant
    assert ours.profile.numerics != again.profile.numerics
    assert ours.profile.namespace == again.profile.namespace
    theirs = load_torch_executor(path, model_name="tiny", num_threads=1)
    theirs.allocate(8)
    parts = [Part(IDS[:9], 0, PAGES[0])]
    np.testing.assert_allclose(logits_of(ours, parts), logits_of(theirs, parts), rtol=0, atol=1e-4)


@pytest.mark.failure("B094")
def test_compiled_kernels_promise_their_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU; what interpreted kernels give is not what compiled ones do."""
    path = save_folder(make_model("llama"), tmp_path)
    interpreted = load(path).profile
    monkeypatch.setattr(triton_executor, "INTERPRETED", False)
    ours, again = load(path).profile, load(path).profile
    assert ours.is_batch_invariant
    assert ours.numerics == again.numerics != interpreted.numerics
    assert ours.namespace == again.namespace


def test_weights_of_few_bits_are_never_the_vendors(tmp_path: Path) -> None:
    path = save_gguf(make_model("llama"), tmp_path / "tiny.gguf", "Q4_0")
    ours, plain = load(path, vendor_products=True).profile, load(path).profile
    assert ours.is_batch_invariant
    assert (ours.kernels, ours.numerics, ours.namespace) == (plain.kernels, plain.numerics, plain.namespace)


@slow
@pytest.mark.parametrize(("kind", "kernel"), [("Q8_0", "triton_w8a16-g32"), ("Q4_0", "triton_w4a16-g32")])
def test_codes_are_multiplied_as_they_are_stored(kind: str, kernel: str, tmp_path: Path) -> None:
    path = save_gguf(make_model("llama"), tmp_path / "tiny.gguf", kind)
    ours, theirs = load(path), load_torch_executor(path, model_name="tiny", num_threads=1)
    theirs.allocate(8)
    assert products_of(ours) == {kernel}
    assert ours.profile.weight_bytes < theirs.profile.weight_bytes
    parts = [Part(IDS[:21], 0, PAGES[0])]
    np.testing.assert_allclose(logits_of(ours, parts), logits_of(theirs, parts), rtol=0, atol=1e-4)


@slow
@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("awq", {"triton_w4a16-g32"}),
        ("gptq_v1", {"triton_w4a16-g64"}),
        ("gptq_v2", {"triton_w4a16-g32"}),
        ("gptq_v1_int8", {"triton_w8a16-g32"}),
        ("gptq_act_order", set()),
        ("w4a16", {"triton_w4a16-g32"}),
        ("w4a16_asym", {"triton_w4a16-g64"}),
        ("w8a16", {"triton_w8a16-g64", "triton_w8a16-g128"}),
    ],
)
def test_packed_checkpoints_are_multiplied_from_their_codes(name: str, kernels: set[str]) -> None:
    """With zero points; scales of whole rows are given to groups that kernels have.

    Columns in the order of activations have no groups that kernels read: they are multiplied as floats.
    """
    path = Path(__file__).parent / "fixtures" / "packed" / name
    ours, theirs = load(path), load_torch_executor(path, model_name="tiny", num_threads=1)
    theirs.allocate(8)
    assert {use.kernel for use in ours.profile.kernels if use.kernel.startswith("triton_w")} == kernels
    vocab = json.loads((path / "config.json").read_text())["vocab_size"]
    parts = [Part([token_id % vocab for token_id in IDS[:9]], 0, PAGES[0])]
    expected = logits_of(theirs, parts)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(logits_of(ours, parts), expected, rtol=0, atol=1e-3)


@slow
def test_narrow_numbers_stay_near(tmp_path: Path) -> None:
    path = save_folder(make_model("llama"), tmp_path)
    theirs = load_torch_executor(path, model_name="tiny", num_threads=1)
    theirs.allocate(8)
    parts = [Part(IDS[:21], 0, PAGES[0])]
    expected = logits_of(theirs, parts)
    for dtype, kv_format, bound in (
        (torch.float32, KvFormat.INT8, 0.05),
        (torch.float16, KvFormat.F16, 0.01),
        (torch.bfloat16, KvFormat.BF16, 0.1),
        (torch.bfloat16, KvFormat.INT8, 0.1),
    ):
        ours = logits_of(load(path, dtype=dtype, kv_format=kv_format), parts)
        assert np.abs(ours - expected).mean() < bound * np.abs(expected).mean(), (dtype, kv_format)


@slow
def test_weights_of_8_bits_meet_rows_of_8_bits_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near the reference, which rounds no row, and joined operations give the bits of their parts."""
    path = save_gguf(make_model("llama"), tmp_path / "tiny.gguf", "Q8_0")
    parts = [Part(IDS[:9], 0, PAGES[0])]
    ours, plain = load(path, int8_rows=True), load(path)
    assert products_of(ours) == {"triton_w8a8-g32", "triton_w8a16-g32"}
    assert {use.layer_kind for use in ours.profile.kernels if use.kernel == "triton_w8a16-g32"} == {"logits"}
    assert ours.profile.numerics != plain.profile.numerics
    theirs = load_torch_executor(path, model_name="tiny", num_threads=1)
    theirs.allocate(8)
    expected, logits = logits_of(theirs, parts), logits_of(ours, parts)
    error = np.abs(logits - expected).mean() / np.abs(expected).mean()
    assert 1e-4 < error < 0.03, "rows are rounded to 8 bits, and no further"
    monkeypatch.setattr(triton_plan, "fuse", lambda plan: plan)
    assert np.array_equal(logits_of(load(path, int8_rows=True), parts), logits)


@slow
def test_weights_of_other_bits_meet_rows_as_they_are(tmp_path: Path) -> None:
    path = save_gguf(make_model("llama"), tmp_path / "tiny.gguf", "Q4_0")
    parts = [Part(IDS[:9], 0, PAGES[0])]
    ours, plain = load(path, int8_rows=True), load(path)
    assert ours.profile.kernels == plain.profile.kernels
    assert np.array_equal(logits_of(ours, parts), logits_of(plain, parts))
