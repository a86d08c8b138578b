"""Connections of the HTTP door: ports, slow and endless heads, keeping alive, draining, closing."""

import asyncio
import socket
from collections.abc import AsyncIterator
from functools import partial

import orjson
import pytest

from gateway.doors import Doors, drain
from gateway.http import server as http_server
from gateway.http.server import HttpServer
from services.chassis.fatal import BusyPort
from services.chassis.grpc import HealthControl
from services.chassis.metrics import Metrics
from services.domain.errors import NoWorker
from tests.fakes.http_rig import HttpRig, http_rig
from tests.fakes.worker_server import says


@pytest.fixture
async def http() -> AsyncIterator[HttpRig]:
    async with http_rig() as started:
        yield started


async def test_a_busy_port_is_said_at_once(http: HttpRig) -> None:
    with pytest.raises(BusyPort):
        HttpServer(http.app, host="127.0.0.1", metrics=Metrics()).bind(http.port)


async def connect(http: HttpRig) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", http.port)


@pytest.mark.parametrize("sent", [b"", b"POST /v1/comp", b"GET /v1/models HTTP/1.1\r\nx-a: b\r\n"])
async def test_a_head_that_never_ends_ends_the_connection(
    http: HttpRig, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_server, "HEAD_LIMIT_S", 0.2)
    reader, writer = await connect(http)
    writer.write(sent)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()


async def test_a_head_without_bounds_ends_the_connection(http: HttpRig) -> None:
    reader, writer = await connect(http)
    writer.write(b"GET /v1/models HTTP/1.1\r\n")
    with pytest.raises(ConnectionError):  # noqa: PT012
        for number in range(100_000):
            writer.write(b"x-%d: %s\r\n" % (number, b"a" * 1000))
            await writer.drain()
        await reader.readexactly(1)
    writer.close()


@pytest.mark.parametrize(
    "sent",
    [b"garbage\r\n\r\n", b"\x16\x03\x01\x02\r\n\r\n", b"GET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n"],
)
async def test_what_is_no_http_is_refused_in_openai_s_words(http: HttpRig, sent: bytes) -> None:
    reader, writer = await connect(http)
    writer.write(sent)
    head, _, body = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert orjson.loads(body)["error"]["code"] == "INVALID_FIELD"
    writer.close()


async def test_a_connection_is_kept_for_the_next_call_also_after_a_refusal(http: HttpRig) -> None:
    reader, writer = await connect(http)
    call = b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n"
    for path, status in ((b"/v1/models", b"200"), (b"/nothing", b"404"), (b"/v1/models", b"200")):
        writer.write(call % path)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.split(b" ")[1] == status
        length = next(
            int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        )
        await reader.readexactly(length)
    writer.close()


@pytest.mark.failure("B161")
async def test_a_draining_door_finishes_its_streams_and_sends_new_calls_away() -> None:
    async with http_rig() as http:
        http.rig.worker.script = says("to the end")
        http.rig.worker.is_open.clear()
        stream = asyncio.create_task(http.post(stream=True))
        await http.rig.until(lambda: http.rig.worker.running)
        healths = [HealthControl([]), HealthControl([])]
        for health in healths:
            health.set_serving()
        doors = Doors(servers=[http.rig.server], healths=healths, http=http.server)
        draining = asyncio.create_task(drain(http.rig.parts, doors, 60))
        await http.rig.until(lambda: http.rig.parts.generate.is_draining)
        refused = await http.post()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "DRAINING")
        assert [health.serving for health in healths] == [False, False]
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        http.rig.worker.is_open.set()
        assert (await stream).text.endswith("[DONE]\n\n")
        await draining
        assert http.server.num_connections == 0


async def test_clients_that_are_connected_are_in_a_gauge() -> None:
    async with http_rig() as http:

        def connected() -> float:
            http.rig.metrics.render()
            return http.rig.metric("quire_http_connections")

        assert connected() == 0
        writers = [(await asyncio.open_connection("127.0.0.1", http.port))[1] for _ in range(2)]
        await http.rig.until(lambda: connected() == 2)
        writers.pop().close()
        await http.rig.until(lambda: connected() == 1)
        writers.pop().close()
        await http.rig.until(lambda: connected() == 0)


async def test_the_port_is_closed_and_streams_are_told_when_the_door_stops() -> None:
    async with http_rig() as http:
        http.rig.worker.is_open.clear()
        call = asyncio.create_task(http.post())
        await http.rig.until(lambda: http.rig.worker.submits)
        http.rig.parts.table.fail_all(partial(NoWorker, "stopping"))
        await http.server.stop()
        assert (await call).status_code == 503
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", http.port)) != 0
