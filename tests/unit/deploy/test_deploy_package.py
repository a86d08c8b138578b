"""What a container installs: a wheel made of nothing but what the Dockerfile copies, complete at run time."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.unit.deploy.deployment import ROOT, copied_sources

NOT_SHIPPED = {"protos/released.binpb"}
"""Needed by nothing that runs."""
_IMPORTS = """
import pathlib, sys
import gateway, kvmanager, scheduler, worker, protos, services
here = pathlib.Path(sys.argv[1])
for package in (gateway, kvmanager, scheduler, worker, protos, services):
    assert here in pathlib.Path(package.__path__[0]).parents, package.__path__
import gateway.stores.quota, services.artifacts.fetch
assert [model.name for model in services.artifacts.fetch.list_models(here)]
from services import cli
for command in cli.COMMANDS.values():
    module, _, function = command.where.partition(":")
    assert callable(getattr(__import__(module, fromlist=[function]), function))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in copied_sources():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            (source / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(source),
        str(source),
    ]
    built = subprocess.run(pip, capture_output=True, text=True, timeout=110)
    assert built.returncode == 0, built.stderr
    return next(source.glob("quire-*.whl"))


@pytest.mark.slow
def test_every_file_of_the_packages_is_in_the_wheel(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    packages = tuple(f"{name}/" for name in copied_sources() if (ROOT / name).is_dir())
    ours = {name for name in tracked.stdout.splitlines() if name.startswith(packages)}
    assert not ours - packed - NOT_SHIPPED


@pytest.mark.slow
def test_all_data_files_are_found_without_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", _IMPORTS, str(tmp_path)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_base_install_has_neither_torch_nor_triton() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = {re.split(r"[^A-Za-z0-9_.-]", one, maxsplit=1)[0] for one in project["dependencies"]}
    assert {"grpcio", "protobuf", "redis", "structlog", "opentelemetry-sdk"} <= base
    assert not base & {"torch", "triton", "transformers"}
