"""What products really run on is in the metrics, and whether a row's bits are its own."""

import pytest

from services.chassis.metrics import Metrics
from services.domain.ids import Namespace
from worker.executors.base import KernelUse, ModelProfile, Tiles
from worker.telemetry import tell_kernels


def profile(*, is_batch_invariant: bool = True) -> ModelProfile:
    return ModelProfile(
        model="m",
        revision="r",
        namespace=Namespace("n"),
        numerics="d",
        executor="native",
        vocab_size=8,
        max_context_tokens=8,
        page_size=16,
        page_bytes=16,
        weight_bytes=1,
        kernels=(KernelUse("q+k+v", "u4_int8", 30), KernelUse("logits", "f32", 1, Tiles.UNTUNED)),
        is_batch_invariant=is_batch_invariant,
    )


@pytest.mark.parametrize("is_batch_invariant", [True, False])
def test_whether_other_requests_move_bits_is_said(is_batch_invariant: bool) -> None:
    metrics = Metrics()
    tell_kernels(metrics, profile(is_batch_invariant=is_batch_invariant))
    assert f"quire_batch_invariant {float(is_batch_invariant)}" in metrics.render().decode()


def test_each_kind_of_layer_names_its_kernel() -> None:
    metrics = Metrics()
    tell_kernels(metrics, profile())
    text = metrics.render().decode()
    assert 'quire_kernel_info{kernel="u4_int8",layer_kind="q+k+v",tiles="none"} 30.0' in text
    assert 'quire_kernel_info{kernel="f32",layer_kind="logits",tiles="untuned"} 1.0' in text
