"""Files of TLS: read and checked at start, followed while serving, and refused by name."""

import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.chassis.certificate import Files, validity
from services.chassis.fatal import ConfigError
from services.chassis.grpc import add_health_and_reflection, bind, create_server, is_serving
from services.chassis.metrics import Metrics
from services.chassis.tls import OPERATOR, SERVICES, Tls, load_tls, peer_name, watch_expiry
from tests.fakes.certificates import TEAM, configuration, expired, files, foreign, make_certs

DAY_S = 86_400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_certs(tmp_path / "certs")


def test_one_section_gives_each_service_its_own_files(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "quire.toml"
    config.write_text(configuration(folder))
    for role in (*SERVICES, OPERATOR):
        tls = load_tls(role, ["--config", str(config)], {})
        assert tls is not None
        assert tls.files.cert == folder / f"{role}.pem"
    assert load_tls("worker", [], {}) is None
    environ = {"QUIRE_TLS_CA": f"{folder}/ca.pem", "QUIRE_TLS_CERT": f"{folder}/{{service}}.pem"}
    with pytest.raises(ConfigError, match="key must be given too"):
        load_tls("worker", [], environ)
    tls = load_tls("worker", [], environ | {"QUIRE_TLS_KEY": f"{folder}/{{service}}.key"})
    assert tls is not None
    assert tls.files.key == folder / "worker.key"


def test_when_a_certificate_ends_is_read_from_it(folder: Path) -> None:
    der = ssl.PEM_cert_to_DER_cert((folder / "worker.pem").read_text())
    begin, end = validity(der)
    assert 0 <= end - begin - 397 * DAY_S < DAY_S
    for broken in (b"", b"\x30", der[:40], b"not DER at all"):
        with pytest.raises(ValueError):
            validity(broken)


def test_what_is_wrong_names_the_file(folder: Path, tmp_path: Path) -> None:
    ca, cert, key = folder / "ca.pem", folder / "worker.pem", folder / "worker.key"
    text = tmp_path / "text.pem"
    text.write_text("no certificate here")
    wrong = {
        r"absent\.pem cannot be read: No such file": Files(ca=tmp_path / "absent.pem", cert=cert, key=key),
        r"text\.pem has no certificate": Files(ca=text, cert=cert, key=key),
        r"scheduler\.key is not the key of certificate .*worker\.pem": Files(
            ca=ca, cert=cert, key=folder / "scheduler.key"
        ),
        r"text\.pem cannot be used": Files(ca=ca, cert=cert, key=text),
        r"expired\.pem expired on \d{4}-": expired(folder, peer_name("worker"), tmp_path),
        r"scheduler\.pem does not name worker\.quire\.internal": files(folder, "scheduler"),
    }
    for message, one in wrong.items():
        with pytest.raises(ConfigError, match=message) as caught:
            Tls(one, "worker")
        assert "\n" not in str(caught.value)


@pytest.fixture
async def address(folder: Path) -> AsyncIterator[str]:
    """A worker's port that asks for certificates."""
    server = create_server()
    health = add_health_and_reflection(server, [])
    credentials = Tls(files(folder, "worker"), "worker").server(asks=True)
    port = bind(server, "127.0.0.1:0", credentials=credentials)
    await server.start()
    health.set_serving()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def reaches(tls: Tls, address: str) -> bool:
    async with tls.channel(address, "worker") as channel:
        return await is_serving(channel, limit_s=30)


def replace_files(folder: Path, other: Path) -> None:
    for one in other.iterdir():
        one.replace(folder / one.name)


async def test_new_files_are_used_by_the_next_handshake_and_the_next_call(
    folder: Path, address: str, tmp_path: Path
) -> None:
    old_caller = Tls(files(folder, OPERATOR))
    before = Path(shutil.copytree(folder, tmp_path / "before"))
    async with old_caller.channel(address, "worker") as channel:
        assert await is_serving(channel, limit_s=30)
        # Another authority for everybody: who does not follow cannot speak to who does.
        replace_files(folder, make_certs(tmp_path / "new"))
        assert await is_serving(channel, limit_s=30)
    assert await reaches(Tls(files(folder, OPERATOR)), address)
    assert not await reaches(Tls(files(before, OPERATOR)), address)


async def test_files_that_cannot_be_used_leave_the_old_ones_in_use(folder: Path, address: str) -> None:
    caller = Tls(files(folder, OPERATOR))
    (folder / "worker.key").write_bytes((folder / "gateway.key").read_bytes())
    assert await reaches(caller, address)
    (folder / "worker.pem").unlink()
    assert await reaches(caller, address)


async def test_only_who_has_a_valid_certificate_gets_in(folder: Path, address: str, tmp_path: Path) -> None:
    assert await reaches(Tls(files(folder, TEAM)), address)
    other = foreign(folder, peer_name(OPERATOR), tmp_path / "other")
    assert not await reaches(Tls(other), address)


async def test_when_files_end_is_a_metric(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics(CollectorRegistry())

    class Looked(Exception):
        pass

    async def once(period_s: float) -> None:
        raise Looked

    monkeypatch.setattr("services.chassis.tls.next_tick", once)
    tls = Tls(files(folder, "worker"))
    with pytest.raises(Looked):
        await watch_expiry(metrics, tls)
    name, labels = "quire_tls_expiry_timestamp_seconds", {"file": str(folder / "worker.pem")}
    [end] = [end for path, end in tls.identity.expiry.items() if path.name == "worker.pem"]
    assert metrics.registry.get_sample_value(name, labels) == end
    assert any(str(folder / "ca.pem") in str(one.labels) for one in samples(metrics, name))


def samples(metrics: Metrics, name: str) -> list[Any]:
    return [one for family in metrics.registry.collect() for one in family.samples if one.name == name]
