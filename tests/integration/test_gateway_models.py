"""Which models a tenant may call, and by which names of its own."""

import dataclasses
from collections.abc import AsyncIterator

import grpc
import pytest

from gateway.core.auth import LOCAL_TENANT
from services.chassis.errors import from_rpc_error
from services.domain.errors import NotYours
from tests.fakes import gateway_rig
from tests.fakes.gateway_rig import ACME, ACME_KEY, Rig, generate
from tests.fakes.worker_server import says


@pytest.fixture
async def rig(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    acme = dataclasses.replace(ACME, models=request.param, aliases={"mine": "tiny"})
    monkeypatch.setattr(gateway_rig, "TENANTS", (LOCAL_TENANT, acme))
    async with gateway_rig.gateway_rig() as started:
        started.worker.script = says("yes")
        yield started


@pytest.mark.parametrize("rig", [None, ("tiny",)], indirect=True)
@pytest.mark.parametrize("name", ["tiny", "mine"])
async def test_a_tenant_calls_its_models_by_their_names_and_its_own(rig: Rig, name: str) -> None:
    assert (await generate(rig, metadata=ACME_KEY, model=name)).text() == "yes"


@pytest.mark.parametrize("rig", [("other",), ()], indirect=True)
@pytest.mark.parametrize("name", ["tiny", "mine"])
async def test_a_model_that_a_tenant_may_not_call_is_refused_by_name(rig: Rig, name: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(rig, metadata=ACME_KEY, model=name)
    error = from_rpc_error(caught.value)
    assert type(error) is NotYours
    assert f"tenant acme may not call model {name}" in error.message
    assert (await generate(rig, model="tiny")).text() == "yes"  # Others may.
    assert len(rig.worker.submits) == 1
