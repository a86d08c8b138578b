"""`quire tenant keys ... --dry-run` checks and shows, and changes nothing."""

import json
from pathlib import Path

import pytest

from tests.fakes.admin_rig import admin_rig
from tests.fakes.valkey import Valkey


async def test_a_dry_run_shows_what_would_be_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    valkey = Valkey(tmp_path)
    await valkey.start()
    try:
        async with admin_rig(valkey.url) as admin:
            await admin.quire("create", "team")
            capsys.readouterr()
            await admin.quire("keys", "create", "team", "--json")
            lines = capsys.readouterr().out.splitlines()  # The gateway here logs between them.
            key = json.loads(next(line for line in lines if line.startswith("{")))["key"]["id"]
            directory = admin.rig.parts.admin.feed.directory
            before, keys = directory.version, dict(directory.keys)
            for words, shown in (
                (("create", "team"), "a key of team would be made"),
                (("rotate", key, "--overlap-s", "5"), f"key {key} would end "),
                (("revoke", key), f"key {key} of team would open nothing any more"),
            ):
                assert await admin.quire("keys", *words, "--dry-run") == 0
                output = capsys.readouterr().out
                assert shown in output
                assert "shown only now" not in output
            assert await admin.quire("keys", "create", "taem", "--dry-run") == 1
            assert "nearest known: team" in capsys.readouterr().err
            assert (directory.version, directory.keys) == (before, keys)
            assert await admin.quire("keys", "revoke", key) == 0
            assert directory.version > before, "the control"
    finally:
        await valkey.stop()
