"""Which of the gateway's doors shows what, by its configuration."""

import dataclasses
from pathlib import Path

import pytest

from gateway.config import GatewayConfig
from gateway.doors_tls import DoorsTls, load_doors_tls
from services.chassis.fatal import ConfigError
from tests.fakes.certificates import configuration, make_certs


def load(config: GatewayConfig, folder: Path | None, tmp_path: Path) -> DoorsTls:
    file = tmp_path / "quire.toml"
    file.write_text("" if folder is None else configuration(folder))
    return load_doors_tls(config, ["--config", str(file)], {})


def test_without_tls_nothing_is_shown(tmp_path: Path) -> None:
    doors = load(GatewayConfig(), None, tmp_path)
    assert (doors.main_door(), doors.admin_door(), doors.all) == (None, None, set())


def test_one_identity_serves_all_doors_unless_callers_are_shown_another(tmp_path: Path) -> None:
    folder = make_certs(tmp_path / "certs")
    doors = load(GatewayConfig(), folder, tmp_path)
    assert doors.public is doors.inside
    public = make_certs(tmp_path / "public")
    config = GatewayConfig(tls_cert=public / "gateway.pem", tls_key=public / "gateway.key")
    doors = load(config, folder, tmp_path)
    assert doors.public is not None
    assert doors.inside is not None
    assert doors.inside.files.cert == folder / "gateway.pem"
    # Callers see the other certificate; theirs are still from the authority of [tls].
    assert (doors.public.files.cert, doors.public.files.ca) == (public / "gateway.pem", folder / "ca.pem")
    assert len(doors.all) == 2
    alone = load(config, None, tmp_path)
    assert (alone.inside, alone.public is not None, alone.admin_door() is not None) == (None, True, True)


def test_a_door_for_certificates_needs_an_authority(tmp_path: Path) -> None:
    config = GatewayConfig(certificate_port=0)
    with pytest.raises(ConfigError, match=r"certificate_port needs ca of \[tls\]"):
        load(config, None, tmp_path)
    public = make_certs(tmp_path / "public")
    pair = {"tls_cert": public / "gateway.pem", "tls_key": public / "gateway.key"}
    with pytest.raises(ConfigError, match="certificate_port needs"):
        load(dataclasses.replace(config, **pair), None, tmp_path)
