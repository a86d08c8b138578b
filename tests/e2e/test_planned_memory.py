"""`quire plan` is within 5 % of what a worker takes: real models as shipped, and one in formats of ours."""

import contextlib
import random
from pathlib import Path

import pytest

from bench.memory import is_within, planned, used
from services.artifacts.artifact import open_artifact
from services.artifacts.fetch import pull
from tests.e2e.stack import TRIES
from worker.quantize.quantizer import quantize
from worker.quantize.settings import Method, QuantizeSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

CONCURRENCY = 4
"""Requests of 1,024 tokens at once: every page of the pool is touched, and one prompt is scored."""


def used_on_free_ports(path: Path, kv_bytes: int) -> int:
    """Return what a worker takes; should somebody hold one of the ports, other ones are tried."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(RuntimeError):
            return used(str(path), CONCURRENCY, kv_bytes, port_offset=random.randrange(1000, 14_000, 50))
    return used(str(path), CONCURRENCY, kv_bytes, port_offset=random.randrange(1000, 14_000, 50))


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("smollm2-135m-instruct", None),
        ("smollm2-135m-instruct", 8),
        ("smollm2-135m-instruct", 4),
        ("gemma3-270m", None),
    ],
)
def test_a_worker_takes_what_was_planned(name: str, bits: int | None, tmp_path: Path) -> None:
    path = pull(name)
    if bits is not None:
        settings = QuantizeSettings(bits=bits, group=32, method=Method.RTN)
        quantize(open_artifact(path), settings, (), tmp_path / name)
        path = tmp_path / name
    plan = planned(str(path), CONCURRENCY)
    asked = plan["total_bytes"] - plan["headroom_bytes"]
    took = used_on_free_ports(path, plan["kv_bytes"])
    assert is_within(asked, took), f"planned {asked / 1e6:.1f} MB, used {took / 1e6:.1f} MB: {plan}"
