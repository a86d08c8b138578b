"""deploy/quire.local.toml: every component reads it, its tenants' keys open, its comments tell the truth."""

import dataclasses
import re
import time
import tomllib
from typing import Any

import pytest

from gateway.config import GatewayConfig, directory_of, load_config
from gateway.core.auth import LOCAL, Authenticator
from kvmanager.config import KvManagerConfig
from kvmanager.config import load_config as load_kvmanager_config
from scheduler.config import SchedulerConfig
from services.chassis.config import SECTIONS, load
from services.chassis.tls import TlsConfig
from services.domain.errors import BadCredential
from services.domain.ids import TenantId
from services.launcher.up import UpConfig
from tests.unit.deploy.deployment import ROOT
from worker.config import WorkerConfig

LOCAL_TOML = ROOT / "deploy" / "quire.local.toml"
CLASSES: dict[str, Any] = {
    "up": UpConfig,
    "gateway": GatewayConfig,
    "scheduler": SchedulerConfig,
    "kvmanager": KvManagerConfig,
    "worker": WorkerConfig,
    "tls": TlsConfig,
}
NEEDED = {"worker": ["--model", "m=/m"]}
_COMMENTED = re.compile(r"^# (\w+ = .*)$", re.MULTILINE)


def read(section: str, text: str, tmp_path: Any) -> Any:
    file = tmp_path / "quire.toml"
    file.write_text(text)
    return load(CLASSES[section], section, argv=NEEDED.get(section, []), environ={}, file=file)


def test_every_section_is_shown() -> None:
    assert set(tomllib.loads(LOCAL_TOML.read_text("utf-8"))) == SECTIONS == {*CLASSES, "tenants"}


@pytest.mark.parametrize("section", CLASSES)
def test_each_component_reads_it(section: str, tmp_path: Any) -> None:
    assert read(section, LOCAL_TOML.read_text("utf-8"), tmp_path)


@pytest.mark.parametrize("section", CLASSES)
def test_what_is_commented_out_is_accepted_and_is_the_default(section: str, tmp_path: Any) -> None:
    shown = LOCAL_TOML.read_text("utf-8")
    opened = read(section, _COMMENTED.sub(r"\1", shown), tmp_path)
    plain = read(section, shown, tmp_path)
    values = {f.name: getattr(opened, f.name) for f in dataclasses.fields(opened) if f.name != "config"}
    changed = {name for name, value in values.items() if value != getattr(plain, name)}
    # Defaults are "the built-in one", "one per model", "by free memory" and "none"; the file shows values.
    shown_values = {"up": {"model", "workers", "kv_memory"}, "tls": {"ca", "cert", "key"}}
    assert changed == shown_values.get(section, set())


def test_two_tenants_with_keys_and_nobody_else() -> None:
    config, declared = load_config(["--config", str(LOCAL_TOML)], {})
    auth = Authenticator(directory_of(declared, b"drawn at start"), b"drawn at start", time.time)
    assert (config.server_key, config.admin_key) == ("", "")
    assert [tenant.id for tenant in declared.tenants] == ["team-a", "team-b"]
    for one in declared.keys:
        assert auth.authenticate(one.key, from_loopback=False).tenant == one.tenant
    assert auth.authenticate(None, from_loopback=True).tenant == LOCAL
    with pytest.raises(BadCredential):
        auth.authenticate("quire_local_team-c_key", from_loopback=True)
    caller = auth.authenticate(declared.keys[1].key, from_loopback=True)
    assert auth.tenant_of(caller).band == "batch"


def test_the_kvmanager_takes_the_caps() -> None:
    caps = load_kvmanager_config(["--config", str(LOCAL_TOML)], {})[1]
    assert caps.with_published({}) == {TenantId("team-b"): 256}
