"""Redis with TLS: by what its address names, else by `[tls]`; never silently without."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog.testing

from services.chassis.fatal import ConfigError
from services.chassis.redis import check_secure, connect
from services.chassis.redis_trouble import what_to_mend
from services.chassis.tls import Tls
from services.domain.errors import DependencyDown
from tests.fakes.certificates import expired, files, foreign, make_certs
from tests.fakes.tls_front import tls_front


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_certs(tmp_path / "certs")


@pytest.fixture
async def pong() -> AsyncIterator[int]:
    """Yield the port of what answers every command in plain text."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(b"+PONG\r\n" * data.count(b"*"))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def answers(url: str, tls: Tls | None = None) -> bool:
    store = connect(url, limit_s=30, tls=tls)
    try:
        return bool(await store.execute("PING") == b"PONG")
    except DependencyDown:
        return False
    finally:
        await store.close()


async def test_the_one_section_gives_authority_and_certificate(
    folder: Path, tmp_path: Path, pong: int
) -> None:
    async with tls_front(folder, "redis", pong) as port:
        url = f"rediss://127.0.0.1:{port}/0"
        assert await answers(url, Tls(files(folder, "scheduler")))
        # It must be who was meant: the worker's certificate names no address.
        async with tls_front(folder, "worker", pong) as another:
            assert not await answers(f"rediss://127.0.0.1:{another}/0", Tls(files(folder, "scheduler")))
        stranger = foreign(folder, "scheduler.quire.internal", tmp_path / "other")
        assert not await answers(url, Tls(stranger))
        assert not await answers(url), "nobody vouches for its certificate"
        assert not await answers(f"redis://127.0.0.1:{port}/0")
    assert await answers(f"redis://127.0.0.1:{pong}/0"), "without TLS everybody may"


async def trouble_with(url: str, tls: Tls) -> tuple[str, str | None]:
    """Return what is said of a Redis that cannot be reached, to who asks and in the log of a service."""
    store = connect(url, limit_s=30, tls=tls)
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            with pytest.raises(DependencyDown) as caught:
                await store.execute("PING")
    await store.close()
    [down] = [line for line in lines if line["event"] == "redis_down"]
    return what_to_mend(caught.value), down["reason"]


async def test_a_certificate_that_is_not_trusted_and_a_redis_without_tls_are_told_apart(
    folder: Path, tmp_path: Path, pong: int
) -> None:
    other = Tls(files(make_certs(tmp_path / "other"), "gateway"))
    async with tls_front(folder, "redis", pong) as port:
        said, logged = await trouble_with(f"rediss://127.0.0.1:{port}/0", other)
    assert said == logged
    assert said.startswith(
        "shows a certificate that is not trusted (self-signed certificate in certificate chain)"
    )
    said, logged = await trouble_with(f"rediss://127.0.0.1:{pong}/0", other)
    assert said == logged
    assert said.startswith("has no TLS that we speak")
    said, logged = await trouble_with("redis://127.0.0.1:1/0", other)
    assert (said.endswith("start it"), logged) == (True, None), "the control"


async def test_what_the_address_names_comes_first(folder: Path, tmp_path: Path, pong: int) -> None:
    other = make_certs(tmp_path / "other")
    async with tls_front(folder, "redis", pong) as port:
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={folder}/ca.pem"
        shown = f"&ssl_certfile={folder}/scheduler.pem&ssl_keyfile={folder}/scheduler.key"
        assert await answers(url + shown)
        assert await answers(url + shown, Tls(files(other, "scheduler")))
        assert not await answers(url), "it asks for a certificate"


async def test_a_renewed_certificate_is_shown_from_the_next_connection_on(
    folder: Path, tmp_path: Path, pong: int
) -> None:
    # Only the file that is wrong is renewed: one that has expired would not even be read at the start.
    shown = files(folder, "gateway")
    assert shown.cert is not None
    assert shown.key is not None
    tls = Tls(shown)
    good = shown.cert.read_bytes(), shown.key.read_bytes()
    stale = expired(folder, "gateway.quire.internal", tmp_path)
    assert stale.cert is not None
    assert stale.key is not None
    async with tls_front(folder, "redis", pong) as port:
        url = f"rediss://127.0.0.1:{port}/0"
        shown.cert.write_bytes(stale.cert.read_bytes())
        shown.key.write_bytes(stale.key.read_bytes())
        assert not await answers(url, tls)
        shown.cert.write_bytes(good[0])
        shown.key.write_bytes(good[1])
        assert await answers(url, tls)


def test_plain_text_to_another_machine_is_refused_where_everything_else_has_tls(folder: Path) -> None:
    tls = Tls(files(folder, "gateway"))
    with pytest.raises(ConfigError, match=r"redis_url must begin with rediss:// where \[tls\] is given"):
        check_secure("redis://:secret@cache:6379/0", False, tls)
    allowed = (
        "rediss://cache:6379/0",
        "redis://127.0.0.1:6390/0",
        "redis://[::1]:1/0",
        "unix:///run/s",
        None,
    )
    for url in allowed:
        check_secure(url, False, tls)
    check_secure("redis://cache:6379/0", True, tls)
    check_secure("redis://cache:6379/0", False, None)
