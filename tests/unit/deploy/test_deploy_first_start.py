"""`quire first-start`: once, whole, for its owner alone; the gateway takes the key."""

import base64
import math
import re
import stat
import time
from pathlib import Path

import pytest

from gateway.config import directory_of, load_config
from gateway.core.auth import Authenticator
from kvmanager.config import load_config as load_kvmanager_config
from services import cli
from services.domain.errors import BadCredential
from services.domain.ids import TenantId
from services.launcher.first_start import make, write_once

MAIN = TenantId("main")
KEY = re.compile(r"quire_[a-z2-7]{12}_[\w-]{43}\b")


def run(out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["first-start", "--out", str(out)]) == 0
    return capsys.readouterr().out


def authenticator(config: Path) -> Authenticator:
    settings, declared = load_config(["--config", str(config)], {})
    server_key = settings.server_key.encode()
    return Authenticator(directory_of(declared, server_key), server_key, time.time)


def test_the_key_that_is_shown_is_the_tenants_and_no_other_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "quire.toml"
    found = KEY.search(run(out, capsys))
    assert found is not None
    auth = authenticator(out)
    assert auth.authenticate(found[0], from_loopback=False).tenant == "main"
    with pytest.raises(BadCredential):
        auth.authenticate(found[0][:-1], from_loopback=True)
    with pytest.raises(BadCredential):
        auth.authenticate(None, from_loopback=False)


def test_a_second_start_changes_nothing_and_shows_no_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "quire.toml"
    run(out, capsys)
    before = out.read_bytes()
    assert not KEY.search(run(out, capsys))
    assert out.read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


def test_only_the_owner_reads_the_file_and_the_key_is_not_in_it(tmp_path: Path) -> None:
    first = make("main")
    assert write_once(tmp_path / "quire.toml", first.text)
    assert stat.S_IMODE((tmp_path / "quire.toml").stat().st_mode) == 0o600
    assert first.key not in first.text


def test_keys_hold_256_random_bits_and_differ() -> None:
    keys = {make("main").key for _ in range(64)}
    assert len(keys) == 64
    bodies = [base64.urlsafe_b64decode(key.split("_", 2)[2] + "=") for key in keys]
    assert {len(body) for body in bodies} == {32}
    # Half of all bits are ones, within six deviations: a constant part would show.
    ones = sum(bit == "1" for body in bodies for byte in body for bit in f"{byte:08b}")
    total = 64 * 256
    assert abs(ones - total / 2) < 6 * math.sqrt(total) / 2


def test_salts_stay_the_same_over_restarts(tmp_path: Path) -> None:
    out = tmp_path / "quire.toml"
    write_once(out, make("main").text)
    assert authenticator(out).salt_of(MAIN, "") == authenticator(out).salt_of(MAIN, "")


def test_the_kvmanager_reads_the_same_file(tmp_path: Path) -> None:
    out = tmp_path / "quire.toml"
    write_once(out, make("main").text)
    assert load_kvmanager_config(["--config", str(out)], {})[1].with_published({}) == {}


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "quire.toml"
    assert write_once(out, "first") is True
    assert write_once(out, "second") is False
    assert out.read_text() == "first"
    assert list(tmp_path.iterdir()) == [out]


def test_a_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["first-start", "--out", str(tmp_path / "none" / "quire.toml")]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "cannot be written" in told
