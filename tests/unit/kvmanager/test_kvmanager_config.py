"""What can be set, and what is refused with the reason."""

from pathlib import Path

import pytest

from kvmanager.config import load_config
from services.chassis.config import ConfigError
from services.domain.ids import TenantId

FILE = """
[kvmanager]
port = 7000

[[tenants]]
id = "red"
kv_pages = 100
key = "red-secret"

[[tenants]]
id = "blue"
"""


def write(folder: Path, text: str) -> str:
    path = folder / "quire.toml"
    path.write_text(text)
    return str(path)


def test_defaults_listen_on_loopback_and_cap_nobody() -> None:
    config, caps = load_config([], {})
    assert (config.host, config.port, config.probe_port, config.redis_url) == ("127.0.0.1", 50053, 9102, None)
    assert caps.with_published({}) == {}


def test_caps_come_from_the_tenants_of_the_file_and_from_flags(tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    config, caps = load_config(["--config", path, "--tenant-cap", "blue=7", "--tenant-cap=red=8"], {})
    assert config.port == 7000
    assert caps.with_published({}) == {"red": 8, "blue": 7}
    assert load_config([], {"QUIRE_CONFIG": path})[1].with_published({}) == {"red": 100}


def test_what_is_published_goes_before_the_file_and_behind_flags(tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    caps = load_config(["--config", path, "--tenant-cap", "blue=7"], {})[1]
    published = {TenantId("red"): 5, TenantId("blue"): 6, TenantId("green"): 4}
    assert caps.with_published(published) == {"red": 5, "blue": 7, "green": 4}


def test_the_idle_time_to_live_is_none_by_default_and_bounded() -> None:
    assert load_config([], {})[0].idle_ttl_s is None
    assert load_config(["--idle-ttl-s", "600"], {})[0].idle_ttl_s == 600
    with pytest.raises(ConfigError, match="idle_ttl_s"):
        load_config(["--idle-ttl-s", "0"], {})


@pytest.mark.parametrize("cap", ["red", "red=", "red=0", "=5", "red=many"])
def test_a_bad_cap_is_refused(cap: str) -> None:
    with pytest.raises(ConfigError, match="TENANT=PAGES"):
        load_config(["--tenant-cap", cap], {})


@pytest.mark.parametrize("pages", ["0", "-3", "true", '"7"'])
def test_a_bad_cap_in_the_file_is_refused_with_its_tenant(tmp_path: Path, pages: str) -> None:
    path = write(tmp_path, f'[[tenants]]\nid = "red"\nkv_pages = {pages}\n')
    with pytest.raises(ConfigError, match=r"tenants\[red\].kv_pages: must be a whole number from 1"):
        load_config(["--config", path], {})
