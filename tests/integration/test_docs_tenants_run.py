"""What docs/tenants.md and docs/redis.md tell people to type does what they say, line after line.

Against one gateway's admin door and a real Valkey. `quire up`, `quire top` and the call over HTTP have tests
of their own (`test_launcher_up`, `test_top_suite`, `test_tenant_usage`).
"""

import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tests.fakes.admin_rig import AdminRig, admin_rig
from tests.fakes.valkey import Valkey
from tests.integration.test_tenant_admin import last_json, printed
from tests.unit.deploy.test_docs_tenants import LINES, REDIS_LINES, TEXT


def renamed(text: str) -> str:
    """Return text with another organisation: the rig's own file has one of that name."""
    return text.replace("acme", "corp")


COMMANDS = [renamed(line) for line in (*LINES, *REDIS_LINES) if line.startswith("quire tenant ")]


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[AdminRig]:
    valkey = Valkey(tmp_path)
    await valkey.start()
    async with admin_rig(valkey.url) as started:
        yield started
    await valkey.stop()


async def test_every_command_of_the_pages_succeeds_in_their_order(
    admin: AdminRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (declared,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "tenants.yaml").write_text(renamed(declared))
    monkeypatch.chdir(tmp_path)
    said: dict[str, str] = {}
    key_id = ""
    for line in COMMANDS:
        command, _, target = line.partition(" > ")
        words = [key_id if word == "KEY_ID" else word for word in shlex.split(command)[2:]]
        assert await admin.quire(*words) == 0, line
        said[line] = printed(capsys)
        if target:
            (tmp_path / target).write_text(said[line])
        if words[:2] == ["keys", "create"]:
            assert await admin.quire("keys", "list", words[2], "--json") == 0
            key_id = last_json(capsys)["id"]
    assert "corp-intern" in said["quire tenant show"]
    assert "per_minute: 300000" in said["quire tenant show corp-code"]
    # What the export wrote is what was declared and set since; applying it changes nothing.
    exported = {one["id"]: one for one in yaml.safe_load((tmp_path / "tenants.yaml").read_text())["tenants"]}
    assert exported["corp-code"]["tokens_per_minute"] == {"per_minute": 400000, "burst": 80000}
    assert exported["corp-sales"]["degradation"]["cap_output_tokens"] == 256
    assert "weight" not in exported["corp-code"]
    assert await admin.quire("apply", "-f", "tenants.yaml") == 0
    assert "as declared" in printed(capsys)
