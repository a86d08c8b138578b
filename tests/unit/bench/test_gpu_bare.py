"""What `bench/gpu.sh` imports is on the machine with the GPU, or was brought along; by hiding all else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.bare_machine import make_bare_machine

IMPORTS = """
import bench.gpu.__main__, bench.gpu.running
from bench.gpu.running import NotHere, _module

for name in ("model_rows", "step_check", "serving"):
    try:
        _module(name)
        print(name, "here")
    except NotHere as exc:
        print(name, "not here:", exc)
"""


def imports(folder: Path, hiding: str) -> list[str]:
    """Import every part as the script does, in the order in which its folders are searched."""
    path = f"{folder}/build/gpu-packages:{folder}:{hiding}"
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.slow
def test_without_what_is_brought_kernels_are_measured_and_the_rest_says_what_to_do(tmp_path: Path) -> None:
    lines = imports(tmp_path, make_bare_machine(tmp_path, brings=False)["PYTHONPATH"])
    assert [line.partition(" ")[0] for line in lines] == ["model_rows", "step_check", "serving"]
    for line in lines:
        assert " not here: No module named " in line
        assert line.endswith("`bench/gpu.sh bring` on a machine with a network, then take build/ along")


@pytest.mark.slow
def test_what_is_brought_is_all_that_lacks(tmp_path: Path) -> None:
    lines = imports(tmp_path, make_bare_machine(tmp_path, brings=True)["PYTHONPATH"])
    assert lines == ["model_rows here", "step_check here", "serving here"]
