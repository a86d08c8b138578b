"""A certificate as an alternative to a key, at both doors: whose it is, edited while they serve."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest

from gateway.http.server import HttpServer
from gateway.service import GatewayService
from protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from services.chassis.errors import ErrorInterceptor
from services.chassis.grpc import bind, create_channel, create_server
from services.chassis.metrics import Metrics
from services.chassis.tls import Tls
from services.client import AsyncClient
from services.domain.errors import BadCredential, ServeError
from services.rpc.tenant_admin import TenantAdminClient
from tests.fakes.admin_rig import AdminRig, admin_rig
from tests.fakes.certificates import TEAM, files, foreign, make_certs
from tests.fakes.gateway_rig import ADMIN_KEY
from tests.fakes.http_rig import app_of
from tests.fakes.valkey import Valkey, eventually

KEY = {"authorization": "Bearer acme-key"}


@dataclass
class Doors:
    """A gateway whose doors have TLS."""

    admin: AdminRig
    folder: Path
    grpc_port: int
    http_port: int

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def client(self, shown: str, **settings: str) -> AsyncClient:
        credentials = Tls(files(self.folder, shown)).channel_credentials()
        address = f"127.0.0.1:{self.grpc_port}"
        return AsyncClient(address, model="tiny", credentials=credentials, timeout_s=30, **settings)

    async def refusal(self, shown: str) -> ServeError | None:
        """Return how a call by certificate is refused; None when it is served."""
        async with self.client(shown) as client:
            try:
                await client.models()
            except ServeError as error:
                return error
        return None

    async def get(self, pair: tuple[Path, Path] | None, **headers: str) -> httpx.Response:
        """List the models over HTTPS on a connection of its own."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if pair is not None:
            context.load_cert_chain(*pair)
        base = f"https://127.0.0.1:{self.http_port}"
        async with httpx.AsyncClient(base_url=base, verify=context, timeout=30) as web:
            return await web.get("/v1/models", headers=headers)

    def pair(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"


@asynccontextmanager
async def open_doors(redis_url: str, folder: Path) -> AsyncIterator[Doors]:
    tls = Tls(files(make_certs(folder), "gateway"), "gateway")
    async with admin_rig(redis_url) as admin:
        parts = admin.rig.parts
        server = create_server(interceptors=[ErrorInterceptor()])
        service = GatewayService(parts.generate, parts.queries, parts.auth, parts.metrics)
        gateway_pb2_grpc.add_GenerateServiceServicer_to_server(service, server)
        port = bind(server, "127.0.0.1:0", credentials=tls.server(asks=True))
        await server.start()
        http = HttpServer(app_of(parts), host="127.0.0.1", metrics=Metrics(), tls=tls.context())
        http_port = http.bind(0)
        serving = asyncio.create_task(http.run())
        try:
            yield Doors(admin, folder, port, http_port)
        finally:
            await http.stop()
            await serving
            await server.stop(0)


@pytest.fixture
async def doors(valkey: Valkey, tmp_path: Path) -> AsyncIterator[Doors]:
    async with open_doors(valkey.url, tmp_path / "certs") as opened:
        yield opened


async def test_a_certificate_is_given_and_taken_by_edits_and_the_record_has_both(doors: Doors) -> None:
    admin = doors.admin
    # Whoever shows a certificate is its holder or nobody, even from this machine.
    assert isinstance(await doors.refusal(TEAM), BadCredential)
    assert (await doors.get(doors.pair(TEAM))).status_code == 401
    assert await admin.quire("create", "team-alpha", f"certificates=[{TEAM}]") == 0
    assert await doors.refusal(TEAM) is None
    assert (await doors.get(doors.pair(TEAM))).status_code == 200
    async with doors.client(TEAM) as client:
        assert (await client.generate_text("hello", max_output_tokens=2)).receipt.usage.output_tokens == 2
    assert await admin.quire("create", "team-beta", f"certificates=[{TEAM}]") == 1
    assert await admin.quire("set", "team-alpha", "certificates=") == 0
    assert isinstance(await doors.refusal(TEAM), BadCredential)
    assert (await doors.get(doors.pair(TEAM))).status_code == 401
    changes = await TenantAdminClient(admin.channel, ADMIN_KEY).changes("team-alpha")
    taken, given = changes
    assert (given.before, given.after) == (None, {"id": "team-alpha", "certificates": [TEAM]})
    assert (taken.before, taken.after) == (given.after, {"id": "team-alpha"})


async def test_an_edit_made_elsewhere_is_obeyed(doors: Doors, valkey: Valkey) -> None:
    async with admin_rig(valkey.url) as other:
        assert await other.quire("create", "team-alpha", f"certificates=[{TEAM}]") == 0

        async def is_served() -> bool:
            return await doors.refusal(TEAM) is None

        await eventually(is_served)


async def test_a_key_that_is_given_decides(doors: Doors) -> None:
    async with doors.client(TEAM, api_key="acme-key") as client:
        assert await client.models()
    async with doors.client(TEAM, api_key="acme-kez") as client:
        with pytest.raises(BadCredential, match="the key is not valid"):
            await client.models()
    assert (await doors.get(doors.pair(TEAM), **KEY)).status_code == 200
    assert (await doors.get(None, **KEY)).status_code == 200
    assert (await doors.get(doors.pair(TEAM), authorization="Bearer acme-kez")).status_code == 401


async def test_https_takes_no_other_authoritys_certificate(doors: Doors, tmp_path: Path) -> None:
    other = foreign(doors.folder, TEAM, tmp_path / "other")
    assert other.cert is not None
    assert other.key is not None
    with pytest.raises((httpx.TransportError, ssl.SSLError)):
        await doors.get((other.cert, other.key), **KEY)


async def test_https_shows_the_renewed_certificate_without_a_restart(doors: Doors) -> None:
    async def shown() -> bytes:
        context = ssl.create_default_context(cafile=str(doors.ca))
        _, writer = await asyncio.open_connection("127.0.0.1", doors.http_port, ssl=context)
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return bytes(der)

    first = await shown()
    assert first == await shown()
    make_certs(doors.folder, "--renew")
    assert await shown() != first
    # And trusts as before.
    assert (await doors.get(doors.pair(TEAM), **KEY)).status_code == 200


async def test_plain_text_is_not_answered(doors: Doors) -> None:
    async with create_channel(f"127.0.0.1:{doors.grpc_port}") as channel:
        stub = gateway_pb2_grpc.GenerateServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListModels(gateway_pb2.ListModelsRequest(), timeout=30)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
