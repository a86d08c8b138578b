"""A tiny model. Imports of seconds, so only when asked for."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.unit.executors.tiny_models import make_model, save_folder

    return save_folder(make_model("llama"), tmp_path_factory.mktemp("model"))
