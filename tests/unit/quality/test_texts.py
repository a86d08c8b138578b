"""The shipped texts: five kinds, and enough tokens of them for both real models."""

from pathlib import Path

import pytest

from services.artifacts.artifact import open_artifact
from services.artifacts.fetch import pull
from worker.quality.session import reader_of
from worker.quality.texts import KINDS, read_texts

FEWEST = 20_000
"""Positions over all kinds."""
FEWEST_OF_A_KIND = 2_500


def num_positions(path: Path) -> dict[str, int]:
    """Count as `quire quality` does: every token of a window but its last."""
    reader = reader_of(open_artifact(path))
    return {
        kind: sum(len(window) - 1 for window in reader.windows(text)) for kind, text in read_texts().items()
    }


def assert_enough(found: dict[str, int]) -> None:
    assert set(found) == {"prose", "chat", "code", "data", "chinese"} == set(KINDS)
    assert sum(found.values()) >= FEWEST
    assert min(found.values()) >= FEWEST_OF_A_KIND


def test_the_texts_are_enough_for_the_model_that_is_fetched_first(model_path: Path) -> None:
    assert_enough(num_positions(model_path))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_texts_are_enough_for_a_tokeniser_of_many_languages() -> None:
    assert_enough(num_positions(pull("gemma3-270m")))


def test_fewer_tokens_are_cut_from_every_kind_alike() -> None:
    whole, cut = read_texts(), read_texts(500)
    assert all(0 < len(cut[kind]) < len(whole[kind]) for kind in KINDS)
    assert all(whole[kind].startswith(cut[kind]) for kind in KINDS)
