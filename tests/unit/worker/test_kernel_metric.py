"""What products really run on is in the metrics."""

from services.chassis.metrics import Metrics
from worker.executors.base import KernelUse
from worker.telemetry import tell_kernels


def test_each_kind_of_layer_names_its_kernel() -> None:
    metrics = Metrics()
    tell_kernels(metrics, [KernelUse("q+k+v", "u4_int8", 30), KernelUse("logits", "f32", 1)])
    text = metrics.render().decode()
    assert 'quire_kernel_info{kernel="u4_int8",layer_kind="q+k+v"} 30.0' in text
    assert 'quire_kernel_info{kernel="f32",layer_kind="logits"} 1.0' in text
