"""Every method of the gateway's gRPC door asks who calls, and nobody else listens beyond its machine."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT

import grpc
import pytest
from google.protobuf import message_factory

from protos.gateway.v1 import gateway_pb2
from services.chassis.errors import from_rpc_error
from services.domain.errors import BadCredential
from tests.fakes.gateway_rig import Rig

SERVICE = gateway_pb2.DESCRIPTOR.services_by_name["GenerateService"]
STRANGERS = (
    (("authorization", "Bearer wrong"),),
    (("authorization", "Basic acme-key"),),
    (("authorization", ""),),
    (("x-api-key", "acme-key "),),
    (("x-forwarded-for", "10.0.0.1"),),
)


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


@pytest.mark.failure("B179")
async def test_no_service_listens_beyond_its_machine_without_tls_or_being_told_so() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}

    async def start(service: str) -> tuple[int | None, str]:
        words = (sys.executable, "-m", service, "--host", "0.0.0.0", "--port", "0", "--probe-port", "0")
        process = await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=STDOUT, env=environment)
        try:
            written, _ = await asyncio.wait_for(process.communicate(), 60)
        finally:
            if process.returncode is None:
                process.kill()
        return process.returncode, written.decode()

    # A worker's own test is in test_worker_process.py.
    for code, written in await asyncio.gather(*map(start, ("gateway", "scheduler", "kvmanager"))):
        assert code == 2, written
        assert written.startswith("error: listening on 0.0.0.0 reaches beyond this machine")
