"""What several tests of services over real gRPC and a real Redis start."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.gateway_rig import Rig, gateway_rig
from tests.fakes.valkey import Valkey


@pytest.fixture
async def valkey(tmp_path: Path) -> AsyncIterator[Valkey]:
    """A server of the test's own, which it may stop and start again."""
    server = Valkey(tmp_path)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A gateway between fake peers, with one worker and no store but memory."""
    async with gateway_rig() as started:
        yield started
