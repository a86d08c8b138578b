"""What `quire doctor` says of a machine, each matter by itself, and its exit code."""

import dataclasses
import json
from pathlib import Path

import pytest

from services.artifacts.model_cache import hash_file, write_marker
from services.commands import doctor
from services.commands.doctor_checks import NEEDED_BYTES, Finding, Verdict, check
from services.commands.doctor_facts import CacheFact, Facts, RedisFact, ask_redis, look, look_into_cache
from tests.conftest import free_port
from worker.amd_driver import AmdDriver
from worker.devices import DeviceMemory, DeviceNodes

MIB = 1 << 20
GOOD = Facts(
    nodes=DeviceNodes(0, 0),
    driver=None,
    driver_error="no libnvidia-ml.so.1 here",
    amd=None,
    packages={"torch": None, "triton": None},
    triton_backends=("amd", "nvidia"),
    has_c_compiler=False,
    gpu=None,
    gpu_memory=None,
    gpu_error="there is no GPU here",
    compiler="g++ 12.2.0",
    compiler_error=None,
    cpu="Xeon",
    instruction_sets=("avx512vnni", "avx2", "portable"),
    num_cores=2,
    huge_pages="madvise",
    free_bytes=8192 * MIB,
    ports={"redis": (6390,), "gateway": (50051, 8000, 9100)},
    busy={},
    is_clock_synchronised=True,
    redis=RedisFact("/usr/bin/valkey-server"),
    cache=CacheFact("/cache", True, 50_000 * MIB, {"smollm2": None}),
)
NVIDIA, AMD = DeviceNodes(1, 0), DeviceNodes(0, 1)
TRITON = {"torch": "2.13", "triton": "3.9"}
MI300 = "AMD Instinct MI300X (gfx942)"
H200 = "NVIDIA H200 (sm_90)"
OK, LOOK, MISSING = Verdict.OK, Verdict.LOOK, Verdict.MISSING


def finding(topic: str, **fields: object) -> Finding:
    [found] = [
        one
        for one in check(dataclasses.replace(GOOD, **fields))  # type: ignore[arg-type]
        if one.topic == topic
    ]
    return found


def test_a_machine_that_lacks_nothing_gets_only_ok() -> None:
    findings = check(GOOD)
    assert {one.verdict for one in findings} == {OK}
    assert all(one.remedy is None for one in findings)
    assert [one.topic for one in findings] == [
        *("driver", "triton", "compiler", "instructions", "executor", "huge pages", "memory", "ports"),
        *("clock", "redis", "model cache"),
    ]


CASES: list[tuple[str, dict[str, object], Verdict, str]] = [
    ("driver", {"nodes": NVIDIA, "driver": "NVIDIA 580.65 with NVIDIA H200"}, OK, "580.65"),
    ("driver", {"nodes": NVIDIA}, LOOK, "NVIDIA runtime"),
    ("driver", {"nodes": AMD, "amd": AmdDriver("6.12", ("gfx942",), True)}, OK, "AMD 6.12 with gfx942"),
    ("driver", {"nodes": AMD, "amd": AmdDriver("6.12", (), True)}, LOOK, "no GPU"),
    ("driver", {"nodes": AMD, "amd": AmdDriver("6.12", ("gfx942",), False)}, LOOK, "groups render"),
    ("driver", {}, OK, "no GPU here"),
    ("triton", {}, OK, "not needed"),
    ("triton", {"nodes": NVIDIA, "gpu": H200, "gpu_error": None}, OK, H200),
    ("triton", {"nodes": NVIDIA, "gpu_error": "pip install it"}, LOOK, "pip install it"),
    ("triton", {"nodes": AMD, "packages": TRITON, "gpu": MI300, "gpu_error": None}, OK, MI300),
    ("triton", {"nodes": AMD, "packages": TRITON, "triton_backends": ("nvidia",)}, LOOK, "for ROCm"),
    ("triton", {"nodes": NVIDIA, "packages": TRITON, "triton_backends": ()}, LOOK, "triton anew"),
    ("compiler", {}, OK, "g++ 12.2.0"),
    ("compiler", {"nodes": NVIDIA, "has_c_compiler": True}, OK, "g++ 12.2.0"),
    ("compiler", {"nodes": NVIDIA}, LOOK, "install gcc or set CC"),
    ("compiler", {"compiler": None, "compiler_error": "install g++"}, LOOK, "install g++"),
    ("instructions", {}, OK, "avx512vnni, avx2, portable on 2 cores of Xeon"),
    ("instructions", {"instruction_sets": ("portable",)}, LOOK, "AVX2"),
    ("executor", {"gpu": H200, "gpu_error": None}, OK, f"triton, on {H200}"),
    ("executor", {}, OK, "native, for avx512vnni"),
    ("executor", {"compiler": None, "packages": {"torch": "2.13", "triton": None}}, LOOK, "g++"),
    ("executor", {"compiler": None, "compiler_error": "install g++"}, MISSING, "install g++"),
    ("huge pages", {}, OK, "madvise"),
    ("huge pages", {"huge_pages": "never"}, LOOK, "echo madvise"),
    ("huge pages", {"huge_pages": None}, OK, "does not say"),
    ("memory", {"free_bytes": NEEDED_BYTES - 1}, MISSING, "needs 548 MiB"),
    ("memory", {"free_bytes": NEEDED_BYTES}, LOOK, "KV takes 25% of it"),
    ("memory", {}, OK, "8,192 MiB free"),
    ("memory", {"gpu_memory": DeviceMemory(90_000 * MIB, 143_771 * MIB)}, OK, "90,000 of 143,771 MiB on"),
    ("memory", {"gpu_memory": DeviceMemory(900 * MIB, 143_771 * MIB)}, LOOK, "else runs on the GPU"),
    ("ports", {}, OK, "all 4 free, 6390 to 50051"),
    ("ports", {"busy": {8000: "in use"}}, MISSING, "8000 (gateway) in use"),
    ("ports", {"busy": dict.fromkeys((6390, 50051, 8000, 9100), "")}, LOOK, "quire status"),
    ("clock", {}, OK, "synchronised"),
    ("clock", {"is_clock_synchronised": False}, LOOK, "chrony"),
    ("clock", {"is_clock_synchronised": None}, OK, "does not say"),
    ("clock", {"redis": RedisFact("r:1", clock_ahead_s=-7.4)}, LOOK, "7 s behind"),
    ("redis", {}, OK, "would be started: /usr/bin/valkey-server"),
    ("redis", {"redis": RedisFact("none", error="no Redis: x")}, MISSING, "install valkey-server"),
    ("redis", {"redis": RedisFact("r:1", error="r:1 does not answer")}, MISSING, "mend REDIS_URL"),
    ("redis", {"redis": RedisFact("r:1", None, "8.1", "noeviction", 0.0)}, OK, "version 8.1"),
    ("redis", {"redis": RedisFact("r:1", None, "8.1", "allkeys-lru", 0.0)}, LOOK, "noeviction"),
    ("model cache", {"cache": CacheFact("/c", False, 1 << 40, {})}, MISSING, "QUIRE_CACHE"),
    ("model cache", {"cache": CacheFact("/c", True, 1, {})}, LOOK, "free some"),
    ("model cache", {"cache": CacheFact("/c", True, 1 << 40, {})}, OK, "first start fetches"),
    ("model cache", {"cache": CacheFact("/c", True, 1 << 40, {"a": "pull --force"})}, MISSING, "--force"),
]


@pytest.mark.parametrize(("topic", "fields", "verdict", "says"), CASES)
def test_each_matter_says_how_it_stands_and_what_to_do(
    topic: str, fields: dict[str, object], verdict: Verdict, says: str
) -> None:
    found = finding(topic, **fields)
    assert found.verdict is verdict
    assert says in f"{found.found} {found.remedy}"
    assert (found.remedy is None) == (verdict is OK)
    assert "\n" not in f"{found.found}{found.remedy}"


@pytest.mark.parametrize("topic", [one.topic for one in check(GOOD)])
def test_of_each_matter_a_fine_and_a_bad_case_are_shown(topic: str) -> None:
    verdicts = [verdict for name, _, verdict, _ in CASES if name == topic]
    assert OK in verdicts
    assert {LOOK, MISSING} & {*verdicts}


@pytest.mark.parametrize(("fields", "code"), [({}, 0), ({"huge_pages": "never"}, 0), ({"free_bytes": 1}, 1)])
def test_only_what_is_needed_and_missing_fails_the_command(
    fields: dict[str, object],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    facts = dataclasses.replace(GOOD, **fields)  # type: ignore[arg-type]
    monkeypatch.setattr(doctor, "look", lambda offset: facts)
    assert doctor.main(["--json"]) == code
    lines = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [line["topic"] for line in lines] == [one.topic for one in check(facts)]
    assert ("missing" in {line["verdict"] for line in lines}) == (code == 1)


def test_a_line_shows_the_remedy_beside_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "look", lambda offset: dataclasses.replace(GOOD, huge_pages="never"))
    assert doctor.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11, "one line each"
    [line] = [line for line in lines if "huge pages" in line]
    assert line.startswith("! huge pages   never  → ")


def test_looking_tells_this_machine_and_makes_nothing(tmp_path: Path) -> None:
    facts = look(10_000, {"PATH": str(tmp_path), "QUIRE_CACHE": str(tmp_path / "none" / "here")})
    assert facts.compiler is None
    assert "install g++" in (facts.compiler_error or "")
    assert facts.instruction_sets[-1] == "portable"
    assert facts.free_bytes > 0
    assert facts.ports["gateway"] == (60051, 18000, 60054, 19100)
    assert facts.cache == CacheFact(str(tmp_path / "none/here"), True, facts.cache.free_bytes, {})
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_model_is_named_with_its_remedy(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "weights").write_text("numbers")
        write_marker(folder, {"weights": hash_file(folder / "weights")})
    (tmp_path / "models" / "bad" / "weights").write_text("other numbers")
    models = look_into_cache(tmp_path).models
    assert models["good"] is None
    assert "quire pull --force bad" in (models["bad"] or "")


async def test_a_redis_that_does_not_answer_is_named_without_its_password() -> None:
    port = free_port()
    found = await ask_redis(f"redis://user:secret@127.0.0.1:{port}/0")
    assert found.where == f"127.0.0.1:{port}"
    assert "does not answer" in (found.error or "")
    assert "secret" not in repr(found)


@pytest.mark.parametrize("url", ["ftp://nowhere", "redis://host:port/0"])
async def test_an_address_that_is_none_is_said(url: str) -> None:
    found = await ask_redis(url)
    assert "no address of a Redis (REDIS_URL" in (found.error or "")
