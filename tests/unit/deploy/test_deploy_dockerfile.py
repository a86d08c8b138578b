"""deploy/Dockerfile: lint, user, stop signal, and a health check that tells ready from not ready."""

import asyncio
import fnmatch
import json
import subprocess
import sys
import tomllib
from pathlib import Path

from services.chassis.lifecycle import DRAIN_LIMIT_S
from services.chassis.probes import Probes
from tests.conftest import free_port
from tests.unit.deploy.deployment import (
    COMPOSE,
    DOCKERFILE,
    ROOT,
    copied_sources,
    dockerfile,
    image_environment,
    service,
)

HADOLINT = Path(sys.executable).with_name("hadolint")


def only(word: str) -> str:
    [found] = [one.rest for one in dockerfile() if one.word == word]
    return found


def test_hadolint_finds_nothing() -> None:
    ran = subprocess.run([HADOLINT, DOCKERFILE], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_it_runs_as_the_user_who_owns_the_volumes() -> None:
    assert only("USER") == service("gateway")["user"] == "10001:10001"
    [setup] = [one.rest for one in dockerfile() if one.word == "RUN" and "useradd" in one.rest]
    assert "groupadd --gid 10001" in setup
    assert "useradd --uid 10001" in setup
    assert {"/models", "/config"} <= set(setup.split())


def test_sigterm_stops_it_and_the_entrypoint_is_the_command_itself() -> None:
    assert only("STOPSIGNAL") == "SIGTERM"
    assert json.loads(only("ENTRYPOINT")) == ["quire"]
    assert f"within {DRAIN_LIMIT_S:.0f} s" in DOCKERFILE.read_text("utf-8")


def test_everything_that_is_copied_is_here_and_reaches_the_builder() -> None:
    rules = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    sent = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    assert rules[1] == "*"
    for source in copied_sources():
        assert (ROOT / source).exists()
        assert source in sent


def test_all_packages_are_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert all(fnmatch.filter(copied_sources(), pattern) for pattern in patterns)


def test_build_arguments_of_the_compose_file_are_known() -> None:
    known = {one.rest.partition("=")[0] for one in dockerfile() if one.word == "ARG"}
    assert set(service("worker-0")["build"]["args"]) == known
    assert service("worker-0")["build"]["dockerfile"] == str(DOCKERFILE.relative_to(COMPOSE.parent))


def check_health(port: int) -> int:
    """Run the image's health check against a port of this machine."""
    _, command = only("HEALTHCHECK").split(" CMD ")
    program, flags, script = json.loads(command)
    assert program == "python"
    assert script == "/opt/quire/ready.py"
    environ = image_environment() | {"QUIRE_PROBE_PORT": str(port)}
    return subprocess.run(
        [sys.executable, flags, ROOT / "deploy/ready.py"], env=environ, timeout=30
    ).returncode


async def test_the_health_check_follows_readiness() -> None:
    ready = False
    async with Probes(0, is_ready=lambda: ready) as probes:
        assert await asyncio.to_thread(check_health, probes.port) == 1
        ready = True
        assert await asyncio.to_thread(check_health, probes.port) == 0


def test_nobody_listening_is_not_ready() -> None:
    assert check_health(free_port()) == 1
