"""A cache folder of each test's own."""

import os
from pathlib import Path

import pytest

from services.artifacts.model_cache import cache_folder


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack weights where the test ends; libraries are compiled once for all tests."""
    compiled = cache_folder(os.environ) / "native"
    compiled.mkdir(parents=True, exist_ok=True)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "native").symlink_to(compiled)
    monkeypatch.setenv("QUIRE_CACHE", str(cache))
    # So that what a start sets is taken back after the test.
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.delenv("TRITON_CACHE_DIR")
