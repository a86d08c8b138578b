"""Programs that tests of native code share: each is compiled once a session."""

from collections.abc import Sequence

import pytest

from tests.unit.executors.linear_probe import linear_command
from tests.unit.executors.probe_targets import PROGRAMS


@pytest.fixture(scope="session", params=PROGRAMS)
def linear_program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    """Return the command that runs `linear_probe.cc`, for one instruction set."""
    return linear_command(tmp_path_factory.getbasetemp(), request.param)
