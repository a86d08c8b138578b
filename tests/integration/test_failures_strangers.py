"""Every method of the gateway's gRPC door asks who calls, whatever is added to it later."""

from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf import message_factory

from protos.gateway.v1 import gateway_pb2
from services.chassis.errors import from_rpc_error
from services.domain.errors import BadCredential
from tests.fakes.gateway_rig import Rig, gateway_rig

SERVICE = gateway_pb2.DESCRIPTOR.services_by_name["GenerateService"]
STRANGERS = (
    (("authorization", "Bearer wrong"),),
    (("authorization", "Basic acme-key"),),
    (("authorization", ""),),
    (("x-api-key", "acme-key "),),
    (("x-forwarded-for", "10.0.0.1"),),
)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with gateway_rig() as started:
        yield started


@pytest.mark.failure("B179")
@pytest.mark.parametrize("metadata", STRANGERS)
async def test_no_method_is_open_to_a_stranger(rig: Rig, metadata: tuple[tuple[str, str], ...]) -> None:
    assert len(SERVICE.methods) == 5
    for method in SERVICE.methods:
        request = message_factory.GetMessageClass(method.input_type)()
        answer = message_factory.GetMessageClass(method.output_type)
        assert not method.client_streaming
        make = rig.channel.unary_stream if method.server_streaming else rig.channel.unary_unary
        call = make(
            f"/{SERVICE.full_name}/{method.name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )(request, metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (call.read() if method.server_streaming else call)
        assert isinstance(from_rpc_error(caught.value), BadCredential), method.name
    assert rig.scheduler.acquired == []
