"""Known failures of model families: one that is not understood is computed as if it were another."""

from typing import Any

import pytest

from worker.models.errors import UnsupportedModel
from worker.models.registry import build_model

CONFIG: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


@pytest.mark.failure("B107")
@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3n"])
def test_a_gemma_whose_norms_and_scale_are_not_known_is_refused_by_name(family: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"'{family}' is not served"):
        build_model({**CONFIG, "model_type": family, "head_dim": 2})
    assert build_model({**CONFIG, "model_type": "llama"}).plan.ops
