"""Programs that tests of native code share: each is compiled once a session."""

from collections.abc import Sequence

import pytest

from tests.unit.executors.linear_probe import compile_probe
from tests.unit.executors.probe_targets import target_params


@pytest.fixture(scope="session", params=target_params())
def linear_program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    """Return the command that runs `linear_probe.cc`, for one instruction set."""
    return compile_probe(request.param, tmp_path_factory.mktemp("linear"))
