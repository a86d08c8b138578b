"""`quire certs`: what it makes, what it keeps, what it says."""

import importlib.util
import ssl
import stat
from pathlib import Path

import pytest

from services import cli
from services.chassis.tls import MONITOR, OPERATOR, SERVICES, peer_name
from services.commands.authority import Pair


def names(folder: Path, name: str) -> set[str]:
    return set(Pair(folder / f"{name}.pem", folder / f"{name}.key").names())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_it_makes_an_authority_and_a_certificate_for_each_role(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "certs"
    assert (
        cli.main(["certs", str(out), "--name", "quire.example", "--name", "10.0.0.7", "--client", "team-a"])
        == 0
    )
    roles = (*SERVICES, OPERATOR, MONITOR)
    made = {f"{name}.{kind}" for name in ("ca", "team-a", "redis", *roles) for kind in ("pem", "key")}
    assert {path.name for path in out.iterdir()} == made
    for path in out.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if path.suffix == ".key" else 0o644), path
    for called in ("gateway", "redis"):
        assert {"quire.example", "10.0.0.7", "localhost", "127.0.0.1", called} <= names(out, called)
    assert all(peer_name(role) in names(out, role) for role in roles)
    assert names(out, "team-a") == {"team-a"}
    trusting = ssl.create_default_context(cafile=str(out / "ca.pem"))
    assert len(trusting.get_ca_certs()) == 1
    printed = capsys.readouterr().out
    assert f'[tls]\nca = "{out}/ca.pem"\ncert = "{out}/{{service}}.pem"' in printed


def test_what_is_there_is_kept_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["certs", str(tmp_path)]
    assert cli.main(words) == 0
    before = contents(tmp_path)
    assert cli.main([*words, "--name", "new.example", "--client", "late"]) == 0
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"late.pem", "late.key"}
    printed = capsys.readouterr().out
    assert f"kept  {tmp_path}/ca.pem: valid until" in printed
    assert "without new.example: --renew makes it anew" in printed


def test_renewing_keeps_the_authority(tmp_path: Path) -> None:
    words = ["certs", str(tmp_path)]
    assert cli.main(words) == 0
    before = contents(tmp_path)
    assert cli.main([*words, "--renew", "--name", "new.example"]) == 0
    after = contents(tmp_path)
    assert {name for name in before if after[name] == before[name]} == {"ca.pem", "ca.key"}
    assert "new.example" in names(tmp_path, "gateway")


@pytest.mark.parametrize("lost", ["ca.pem", "ca.key"])
def test_half_an_authority_is_not_replaced(
    tmp_path: Path, lost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["certs", str(tmp_path)]) == 0
    (tmp_path / lost).unlink()
    before = contents(tmp_path)
    assert cli.main(["certs", str(tmp_path), "--renew"]) == 1
    assert contents(tmp_path) == before
    assert lost in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gateway", "ca", "operator", "worker.quire.internal", "../x", ""])
def test_a_caller_cannot_be_given_a_services_name(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["certs", str(tmp_path / "out"), "--client", name]) == 2
    assert "--client" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_the_library_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["certs", str(tmp_path / "out")]) == 1
    assert "pip install 'quire[certs]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
