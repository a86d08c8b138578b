"""Every process of a simulated suite, the gateway among them, comes up and answers where torch is missing.

A native worker without torch is the case of tests/unit/worker/test_executor_choice.py.
"""

import os
from pathlib import Path

import psutil
import pytest

from tests.integration.test_launcher_up import launch

pytestmark = pytest.mark.timeout(300)

BLOCKING = """
import os
import sys
from pathlib import Path

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton"):
            # Code that makes do without it would hide that it asked.
            Path(os.environ["ASKED_FOR"], name.partition(".")[0]).touch()
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
Path(os.environ["STARTED"], str(os.getpid())).touch()
"""
"""What every Python process of the suite runs before anything else, as `sitecustomize`."""


def module_of(process: psutil.Process) -> str | None:
    """Return which module a Python process runs; None for Redis."""
    words = process.cmdline()
    return words[words.index("-m") + 1] if "-m" in words else None


async def test_a_sim_suite_starts_and_answers_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("blocking", "started", "asked"):
        (tmp_path / name).mkdir()
    (tmp_path / "blocking" / "sitecustomize.py").write_text(BLOCKING)
    paths = [str(tmp_path / "blocking"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    monkeypatch.setenv("STARTED", str(tmp_path / "started"))
    monkeypatch.setenv("ASKED_FOR", str(tmp_path / "asked"))
    async with launch(tmp_path / "cache", "--sim", "--model", "sim") as launcher:
        await launcher.ready()
        modules = {process.pid: module_of(process) for process in launcher.family()}
        assert {"kvmanager", "scheduler", "worker", "gateway"} <= set(modules.values())
        python = {pid for pid, module in modules.items() if module}
        blocked = {int(path.name) for path in (tmp_path / "started").iterdir()}
        assert python | {launcher.process.pid} <= blocked
        code, _, err = await launcher.quire("generate", "--max-tokens", "8", "Hello")
        assert code == 0, err
        assert "8 output tokens" in err
    assert list((tmp_path / "asked").iterdir()) == []
