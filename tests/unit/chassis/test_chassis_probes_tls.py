"""Probe ports with TLS: health to whoever asks, metrics to who may read them."""

import asyncio
import runpy
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.chassis.certificate import Files
from services.chassis.metrics import Metrics
from services.chassis.probes import Probes
from services.chassis.tls import MONITOR, OPERATOR, Tls, peer_name
from tests.fakes.certificates import TEAM, expired, files, foreign, make_certs
from tests.unit.deploy.deployment import ROOT

ALLOWED = {"/healthz": 200, "/readyz": 200, "/metrics": 200}
HEALTH = ALLOWED | {"/metrics": 403}
REFUSED = dict.fromkeys(ALLOWED)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_certs(tmp_path / "certs")


@asynccontextmanager
async def probes(tls: Tls | None) -> AsyncIterator[int]:
    async with Probes(0, is_ready=lambda: True, metrics=Metrics(), tls=tls) as serving:
        yield serving.port


async def told(port: int, ca: Path, shown: Files | None) -> dict[str, int | None]:
    """Return the status of each path; None where the connection was refused."""
    context = ssl.create_default_context(cafile=str(ca))
    if shown is not None:
        assert shown.cert is not None
        context.load_cert_chain(shown.cert, shown.key)
    return {path: await _status(port, path, context) for path in ALLOWED}


async def _status(port: int, path: str, context: ssl.SSLContext | None) -> int | None:
    name = None if context is None else peer_name("worker")
    try:
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname=name
            )
            writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            head = await reader.read()
            writer.close()
    except OSError:
        return None
    return int(head.split()[1]) if head.startswith(b"HTTP/") else None


async def test_strangers_are_refused_and_metrics_are_for_those_who_may_read_them(
    folder: Path, tmp_path: Path
) -> None:
    ca = folder / "ca.pem"
    async with probes(Tls(files(folder, "worker"), "worker")) as port:
        assert await told(port, ca, None) == HEALTH, "an orchestrator has no certificate"
        assert await told(port, ca, files(folder, TEAM)) == HEALTH, "a tenant's caller has one of no role"
        for role in (MONITOR, OPERATOR):
            assert await told(port, ca, files(folder, role)) == ALLOWED
        name = peer_name(MONITOR)
        assert await told(port, ca, foreign(folder, name, tmp_path / "other")) == REFUSED
        assert await told(port, ca, expired(folder, name, tmp_path)) == REFUSED
        assert await _status(port, "/healthz", None) is None, "plain text is not answered"


async def test_without_tls_the_same_questions_are_answered_to_all(folder: Path) -> None:
    async with probes(None) as port:
        assert {path: await _status(port, path, None) for path in ALLOWED} == ALLOWED


async def test_metrics_may_be_left_open(folder: Path) -> None:
    async with probes(Tls(files(folder, "worker"), "worker", open_metrics=True)) as port:
        assert await told(port, folder / "ca.pem", None) == ALLOWED


@pytest.mark.parametrize("has_tls", [False, True])
async def test_the_containers_check_asks_as_a_kubelet_does(folder: Path, has_tls: bool) -> None:
    is_ready = runpy.run_path(str(ROOT / "deploy/ready.py"))["is_ready"]
    state = {"ready": False}
    tls = Tls(files(folder, "worker"), "worker") if has_tls else None
    async with Probes(0, is_ready=lambda: state["ready"], tls=tls) as serving:
        assert not await asyncio.to_thread(is_ready, serving.port)
        state["ready"] = True
        assert await asyncio.to_thread(is_ready, serving.port)
    assert not await asyncio.to_thread(is_ready, serving.port)
