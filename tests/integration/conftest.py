"""What several tests of services over real gRPC and a real Redis start."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.valkey import Valkey


@pytest.fixture
async def valkey(tmp_path: Path) -> AsyncIterator[Valkey]:
    """A server of the test's own, which it may stop and start again."""
    server = Valkey(tmp_path)
    await server.start()
    yield server
    await server.stop()
