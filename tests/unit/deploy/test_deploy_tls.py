"""What docs/deploy.md overrides to turn TLS on under docker compose: valid, whole, and what services read."""

import copy
import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from services.chassis.certificate import Files
from services.chassis.config import load
from services.chassis.fatal import ConfigError
from services.chassis.redis import check_secure
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
        one["environment"] = (one.get("environment") or {}) | change.get("environment", {})
        one["volumes"] = [*one.get("volumes", []), *change["volumes"]]
        one |= {key: value for key, value in change.items() if key in ("command", "healthcheck")}
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
    assert sorted(override()["services"]) == sorted((*SERVICES, "redis"))


@pytest.mark.parametrize("name", ["kvmanager", "scheduler", "gateway"])
def test_redis_is_reached_by_tls_with_the_same_certificates(name: str, tmp_path: Path) -> None:
    plain, secure = environment_of(name), environ_of(name)
    variable = f"QUIRE_{name.upper()}_REDIS_URL"
    assert secure[variable] == plain[variable].replace("redis://", "rediss://")
    folder = make_certs(tmp_path)
    tls = load_tls(name, (), environ_of(name, folder))
    check_secure(secure[variable], False, tls)
    with pytest.raises(ConfigError, match="rediss://"):
        check_secure(plain[variable], False, tls)


def test_redis_itself_is_as_before_but_for_tls_and_asks_for_certificates(certs: Path) -> None:
    def options(command: str) -> dict[str, str]:
        words = command.split()[1:]
        return dict(zip(words[::2], words[1::2], strict=True))

    changed = override()["services"]["redis"]
    before, now = options(compose()["services"]["redis"]["command"]), options(changed["command"])
    tls = {name: value for name, value in now.items() if name.startswith("--tls-")}
    assert (now.pop("--port"), tls.pop("--tls-port")) == ("0", before.pop("--port"))
    assert {name: value for name, value in now.items() if not name.startswith("--tls-")} == before
    assert tls.pop("--tls-auth-clients") == "yes"
    place = str(mount_of("redis")[1])
    shown = {name: Path(value.replace(place, str(certs))) for name, value in tls.items()}
    Files(ca=shown["--tls-ca-cert-file"], cert=shown["--tls-cert-file"], key=shown["--tls-key-file"]).read(
        name="redis"
    )
    check = changed["healthcheck"]["test"]
    assert [check[check.index(flag) + 1] for flag in ("--cacert", "--cert", "--key")] == list(tls.values())


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
