"""AWQ and GPTQ keep a product closer than the nearest codes do, and damage nothing where they cannot."""

import pytest
import torch
from torch import Tensor

from worker.quantize.awq import scale_columns
from worker.quantize.errors import QuantizeError
from worker.quantize.gptq import round_gptq
from worker.quantize.gram import Gram
from worker.quantize.layers import Fold
from worker.quantize.rounding import round_clipped, round_nearest

BITS, GROUP, WIDTH = 4, 64, 192


def inputs(seed: int = 0) -> Tensor:
    """Return correlated rows, some columns ten times as large: what models' activations look like."""
    draw = torch.Generator().manual_seed(seed)
    mix = torch.randn(40, WIDTH, generator=draw)
    rows = torch.randn(600, 40, generator=draw) @ mix + 0.5 * torch.randn(600, WIDTH, generator=draw)
    rows[:, ::24] *= 10
    return rows


def gram_of(rows: Tensor) -> Gram:
    gram = Gram.empty(WIDTH)
    gram.add(rows)
    return gram


@pytest.fixture
def weight() -> Tensor:
    return 0.05 * torch.randn(96, WIDTH, generator=torch.Generator().manual_seed(1))


def test_the_gram_gives_the_squared_error_of_the_product(weight: Tensor) -> None:
    rows = inputs()
    expected = float(((rows @ weight.t()) ** 2).sum())
    assert gram_of(rows).error(weight) == pytest.approx(expected, rel=1e-4)


def test_gptq_keeps_the_product_closer_on_inputs_that_it_has_not_seen(weight: Tensor) -> None:
    seen, unseen = inputs()[:400], inputs()[400:]
    nearest = round_nearest(weight, bits=BITS, group=GROUP).values()
    ours = round_gptq(weight, gram_of(seen), bits=BITS, group=GROUP).values()
    assert gram_of(unseen).error(ours - weight) < 0.6 * gram_of(unseen).error(nearest - weight)


def test_awq_keeps_the_product_closer_on_inputs_that_it_has_not_seen(weight: Tensor) -> None:
    seen, unseen = inputs()[:400], inputs()[400:]
    norm = torch.ones(WIDTH)
    values = {"w": weight, "norm": norm}
    gram = scale_columns(values, ["w"], gram_of(seen), Fold("norm", None), bits=BITS, group=GROUP)
    rounded = round_clipped(values["w"], gram, bits=BITS, group=GROUP).values() * values["norm"]
    nearest = round_nearest(weight, bits=BITS, group=GROUP).values()
    assert gram_of(unseen).error(rounded - weight) < 0.8 * gram_of(unseen).error(nearest - weight)


def test_where_inputs_have_no_shape_gptq_rounds_to_the_nearest(weight: Tensor) -> None:
    gram = Gram(torch.eye(WIDTH), torch.ones(WIDTH), WIDTH)
    ours = round_gptq(weight, gram, bits=BITS, group=GROUP)
    assert torch.equal(ours.codes, round_nearest(weight, bits=BITS, group=GROUP).codes)


def test_columns_that_nothing_meets_and_few_rows_do_no_harm(weight: Tensor) -> None:
    rows = inputs()[:8]
    rows[:, 5:9] = 0
    for rounded in (
        round_gptq(weight, gram_of(rows), bits=BITS, group=GROUP),
        round_clipped(weight, gram_of(rows), bits=BITS, group=GROUP),
    ):
        assert bool(rounded.values().isfinite().all())
    values = {"w": weight, "norm": torch.ones(WIDTH)}
    scale_columns(values, ["w"], gram_of(rows), Fold("norm", None), bits=BITS, group=GROUP)
    assert bool(values["w"].isfinite().all())
    assert bool(values["norm"].isfinite().all())


@pytest.mark.failure("B121")
def test_rows_and_groups_of_zeros_stay_zero_under_every_method(weight: Tensor) -> None:
    weight[3] = 0
    weight[:, :GROUP] = 0
    gram = gram_of(inputs())
    for rounded in (
        round_gptq(weight, gram, bits=BITS, group=GROUP),
        round_clipped(weight, gram, bits=BITS, group=GROUP),
    ):
        values = rounded.values()
        assert not values[3].any()
        assert not values[:, :GROUP].any()


def test_inputs_that_overflowed_are_an_error_and_no_endless_search(weight: Tensor) -> None:
    gram = gram_of(inputs())
    gram.products[3, 3] = torch.nan
    with pytest.raises(QuantizeError, match="not finite"):
        round_gptq(weight, gram, bits=BITS, group=GROUP)
