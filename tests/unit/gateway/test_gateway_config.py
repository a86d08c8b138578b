"""Configuration and tenants are checked once, and errors never show a key."""

import time
from pathlib import Path

import pytest

from gateway.config import directory_of, load_config
from gateway.core.auth import Authenticator
from gateway.core.keys import KeyScope
from services.chassis.config import ConfigError
from services.domain.errors import BadCredential, NotYours

TENANTS = """
[gateway]
port = 7000

[[tenants]]
id = "acme"
key = "acme-secret"
band = "batch"
max_concurrency = 3
kv_pages = 10

[[tenants]]
id = "beta"
key_hmac = "{hmac}"
"""


def test_flags_file_and_tenants_are_read(tmp_path: Path) -> None:
    file = tmp_path / "quire.toml"
    file.write_text(TENANTS.format(hmac="0" * 64))
    config, declared = load_config(["--config", str(file), "--model", "a=/x", "--model", "b=/y=z"], {})
    assert config.port == 7000
    assert config.models() == {"a": Path("/x"), "b": Path("/y=z")}
    auth = Authenticator(directory_of(declared, b"k", "the admin's own key"), b"k", time.time)
    caller = auth.authenticate("acme-secret", from_loopback=False)
    tenant = auth.tenant_of(caller)
    assert (tenant.id, tenant.band, tenant.limits.max_concurrency, tenant.kv_pages) == (
        "acme",
        "batch",
        3,
        10,
    )
    assert "acme-secret" not in repr(declared)
    with pytest.raises(BadCredential):
        auth.authenticate("0" * 64, from_loopback=True)
    auth.authenticate("the admin's own key", from_loopback=False, scope=KeyScope.ADMIN)
    with pytest.raises(NotYours):
        auth.authenticate("the admin's own key", from_loopback=True)


@pytest.mark.failure("B180")
@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        ('id = "a}b"\nkey = "long-secret"', r"id: must be"),
        ('id = "a"\nkey = "short1"', "at least 8"),
        ('id = "a"\nkey = "long-secret"\nbnad = 1', "did you mean band"),
        (
            'id = "a"\nkey = "long-secret"\nmax_concurrency = 0',
            r"tenants\[a\].max_concurrency: must be .*nearest valid: 1",
        ),
        ('id = "a"\nkey_hmac = "ABC"', "64 hex digits"),
        (
            'id = "a"\nkey = "long-secret"\nband = "btach"',
            r"tenants\[a\].band: must be one of interactive, standard, batch.*btach.*nearest valid: batch",
        ),
        (
            'id = "a"\nkey = "long-secret"\nprices = {currency = "eur"}',
            r"tenants\[a\].prices.currency: must be an ISO 4217 code.*nearest valid: EUR",
        ),
    ],
)
def test_a_bad_tenant_is_refused_without_showing_its_key(tmp_path: Path, broken: str, rule: str) -> None:
    file = tmp_path / "quire.toml"
    file.write_text(f"[[tenants]]\n{broken}\n")
    with pytest.raises(ConfigError, match=rule) as caught:
        load_config(["--config", str(file)], {})
    assert "secret" not in str(caught.value)
    assert "short1" not in str(caught.value)


@pytest.mark.parametrize(
    ("band", "refused"), [("night", ""), ("nihgt", ".*nearest valid: night"), ("batch", ", got .batch")]
)
def test_a_tenants_band_is_one_that_the_file_gives_the_scheduler(
    tmp_path: Path, band: str, refused: str
) -> None:
    file = tmp_path / "quire.toml"
    bands = "".join(f'[[scheduler.bands]]\nname = "{name}"\nfloor = 0.1\n' for name in ("live", "night"))
    file.write_text(f'{bands}[[tenants]]\nid = "a"\nband = "{band}"\n[[tenants]]\nid = "names-none"\n')
    if not refused:
        _, declared = load_config(["--config", str(file)], {})
        assert declared.tenants[0].band == "night"
        return
    rule = rf"tenants\[a\].band: must be one of live, night{refused}"
    with pytest.raises(ConfigError, match=rule) as caught:
        load_config(["--config", str(file)], {})
    assert "\n" not in str(caught.value), "one line"


@pytest.mark.parametrize(
    "flags",
    [
        ["--model", "x"],
        ["--model", "a=b", "--model", "a=c"],
        ["--scheduler", "nowhere"],
        ["--port", "-1"],
        ["--admin-key", "short"],
    ],
)
def test_bad_flags_are_refused(flags: list[str]) -> None:
    with pytest.raises(ConfigError):
        load_config(flags, {})
