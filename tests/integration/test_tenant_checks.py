"""Each check of `python -m bench.tenants` holds with its feature and does not without: so it can fail."""

import pytest

from bench.tenants.check import Check
from bench.tenants.controls import CHECKS

SLOW = {"a worker of NaN rows", "a prompt that ends engines"}
"""`test_worker_faults.py` has them, in more detail, in the quick pass."""


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
@pytest.mark.parametrize(
    "check",
    [pytest.param(one, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, one in CHECKS.items()],
)
async def test_it_holds_with_its_feature_and_not_without(check: Check, is_on: bool) -> None:
    outcome = await check(is_on)
    assert outcome.holds is is_on, outcome.told
