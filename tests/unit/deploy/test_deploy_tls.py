"""What docs/deploy.md overrides to turn TLS on under docker compose: valid, whole, and what services read."""

import copy
import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from services.chassis.config import load
from services.chassis.tls import SERVICES as ROLES
from services.chassis.tls import Tls, TlsConfig, load_tls
from tests.fakes.certificates import make_certs
from tests.unit.deploy.deployment import ROOT, SERVICES, command_of, compose, environment_of


def override() -> dict[str, Any]:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text("utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if "QUIRE_TLS_CA" in block)
    document: dict[str, Any] = yaml.safe_load(block)
    return document


def merged() -> dict[str, Any]:
    """Return both files as the engine merges them: variables by name, volumes one after the other."""
    document = copy.deepcopy(compose())
    for name, change in override()["services"].items():
        one = document["services"][name]
        one["environment"] = (one.get("environment") or {}) | change["environment"]
        one["volumes"] = [*one.get("volumes", []), *change["volumes"]]
    return document


def mount_of(name: str) -> tuple[str, PurePosixPath, str]:
    """Return folder here, place in the container and mode of what the override mounts."""
    (volume,) = override()["services"][name]["volumes"]
    source, place, mode = volume.split(":")
    return source, PurePosixPath(place), mode


def environ_of(name: str, folder: Path | None = None) -> dict[str, str]:
    """Return a container's variables; `folder` stands for what is mounted."""
    environ = environment_of(name) | override()["services"][name]["environment"]
    environ.pop("QUIRE_CONFIG", None)
    if folder is not None:
        place = str(mount_of(name)[1])
        environ = {key: value.replace(place, str(folder)) for key, value in environ.items()}
    return environ


def test_the_override_and_what_it_makes_of_the_file_follow_the_compose_specification() -> None:
    for document in (override(), merged()):
        PyCompose.from_json(json.dumps(document))
    broken = override()
    broken["services"]["gateway"]["volums"] = []
    with pytest.raises(ValueError, match="volums"):
        PyCompose.from_json(json.dumps(broken))


def test_every_service_has_it_because_one_in_plain_text_would_reach_nobody() -> None:
    assert sorted(override()["services"]) == sorted(SERVICES)


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_covers_every_path_that_is_named_and_hides_no_other_mount(name: str) -> None:
    source, place, mode = mount_of(name)
    assert (source, mode) == ("./certs", "ro")
    config = load(TlsConfig, "tls", argv=(), environ=environ_of(name))
    paths = [config.ca, config.cert, config.key]
    assert all(path is not None and PurePosixPath(path).parent == place for path in paths)
    places = [volume.split(":")[1] for volume in merged()["services"][name]["volumes"]]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_finds_its_own_files_among_those_that_quire_certs_makes(name: str, certs: Path) -> None:
    role = command_of(name)[0]
    assert role in ROLES
    found = load_tls(role, (), environ_of(name, certs))
    assert isinstance(found, Tls)
    assert found.files.cert == certs / f"{role}.pem"


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certs(tmp_path_factory.mktemp("certs"))
