"""Stacks that several tests share; a start costs seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import Stack, running
from tests.e2e.stack_setup import REAL, Setup


@pytest.fixture(scope="session")
def calm(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two workers of 160 pages, traced, in which nothing is ever killed."""
    with running(Setup(is_traced=True), model_path, tmp_path_factory.mktemp("calm")) as stack:
        yield stack


@pytest.fixture(scope="module")
def mortal(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two slow workers in which every process dies at some time."""
    with running(Setup(step_ms=8.0), model_path, tmp_path_factory.mktemp("mortal")) as stack:
        yield stack


@pytest.fixture(scope="session")
def real(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One worker that computes the real model."""
    with running(REAL, model_path, tmp_path_factory.mktemp("real")) as stack:
        yield stack
