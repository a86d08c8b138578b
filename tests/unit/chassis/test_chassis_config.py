from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from services.chassis.config import ByteSize, ConfigError, check_range, load, parse_bytes


class Executor(StrEnum):
    TORCH = "torch"
    SIM = "sim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    name: str
    max_concurrent: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A component."""

    port: int = 50060
    """TCP port."""
    kv_memory: ByteSize | None = None
    """Bytes of KV; absent: automatic."""
    wait_s: float = 0.5
    """Seconds."""
    insecure: bool = False
    """Listen beyond loopback."""
    model: tuple[str, ...] = ()
    """NAME=PATH."""
    executor: Executor = Executor.TORCH
    """Who computes."""
    cache: Path | None = None
    """Folder."""
    tenants: tuple[Tenant, ...] = ()
    """Static tenants; file only."""

    def __post_init__(self) -> None:
        check_range("port", self.port, 0, 65535)


def read(*argv: str, environ: dict[str, str] | None = None, file: Path | None = None) -> Config:
    return load(Config, "worker", argv=argv, environ=environ or {}, file=file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "quire.toml"
    path.write_text(
        '[worker]\nport = 1\nkv-memory = "1GB"\nwait_s = 2\nmodel = ["a=x"]\n'
        '[[worker.tenants]]\nname = "one"\nmax_concurrent = 2\n[gateway]\nanything = 1\n'
    )
    return path


def test_defaults_hold_when_nothing_is_given() -> None:
    assert read() == Config()


def test_flags_win_over_environment_over_file(file: Path) -> None:
    environ = {"QUIRE_WORKER_PORT": "2", "QUIRE_WORKER_WAIT_S": "3"}
    config = read("--port", "3", environ=environ, file=file)
    assert (config.port, config.wait_s, config.kv_memory) == (3, 3.0, 10**9)


def test_the_file_may_be_named_by_flag_or_variable(file: Path) -> None:
    assert read("--config", str(file)).port == 1
    assert read(environ={"QUIRE_CONFIG": str(file)}).port == 1


def test_every_type_is_read_from_flags() -> None:
    config = read(
        *("--kv-memory", "512MiB", "--insecure", "--model", "a=1", "--model=b=2"),
        *("--executor", "sim", "--cache", "/c"),
    )
    assert config == Config(
        kv_memory=ByteSize(512 * 2**20),
        insecure=True,
        model=("a=1", "b=2"),
        executor=Executor.SIM,
        cache=Path("/c"),
    )


def test_lists_in_the_environment_are_split_at_commas() -> None:
    assert read(environ={"QUIRE_WORKER_MODEL": "a=1,b=2"}).model == ("a=1", "b=2")


def test_tables_come_from_the_file(file: Path) -> None:
    assert read(file=file).tenants == (Tenant(name="one", max_concurrent=2),)


@pytest.mark.parametrize(
    ("argv", "environ", "text"),
    [
        (["--prot", "1"], {}, "unknown flag --prot; did you mean --port?"),
        (["--port", "x"], {}, "--port must be a whole number, got 'x'"),
        (["--port", "70000"], {}, "port must be 0 to 65535, got 70000"),
        (["--executor", "gpu"], {}, "--executor must be one of torch, sim, got 'gpu'"),
        (["--kv-memory", "much"], {}, "--kv-memory must be a size such as 512MiB or 2GB, got 'much'"),
        ([], {"QUIRE_WORKER_PORTT": "1"}, "QUIRE_WORKER_PORTT; did you mean QUIRE_WORKER_PORT?"),
        ([], {"QUIRE_WORKER_INSECURE": "perhaps"}, "QUIRE_WORKER_INSECURE must be true or false"),
        (["--config", "/nowhere.toml"], {}, "cannot read /nowhere.toml"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(argv: list[str], environ: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(*argv, environ=environ)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[worker]\nprot = 1", "unknown key prot; did you mean port?"),
        ("[wroker]\nport = 1", "unknown section [wroker]; did you mean [worker]?"),
        ("[worker]\nport = true", "worker.port must be a whole number, got True"),
        ("[[worker.tenants]]\nnam = 'x'", "a table of name, max_concurrent"),
        ("worker = 3", "worker must be a section"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"did you mean|must be") as caught:
        read(file=path)
    assert text.replace("[worker]?", "worker?") in str(caught.value)


def test_a_missing_required_field_is_named() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Needs:
        scheduler: str

    with pytest.raises(ConfigError, match="--scheduler must be given"):
        load(Needs, "gateway", argv=[], environ={})


def test_help_shows_each_field_with_its_unit_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help")
    out = capsys.readouterr().out
    assert "Bytes of KV; absent: automatic." in out
    assert "default 50060" in out


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("12", 12), ("1.5kB", 1500), ("512MiB", 2**29), ("2 GB", 2 * 10**9)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_bytes(text) == size
