"""docker-compose.yml: valid, what the services accept, and closed but for two doors on loopback."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from compose_spec import PyCompose, parse_duration

import gateway.config
import kvmanager.config
from scheduler.config import SchedulerConfig
from services.artifacts.model_cache import model_folder
from services.chassis.config import load
from services.chassis.grpc import check_bind
from services.chassis.lifecycle import DRAIN_LIMIT_S
from services.launcher.first_start import FirstStartConfig, make, write_once
from services.launcher.ports import Ports
from tests.unit.deploy.deployment import (
    ONCE,
    ROOT,
    SERVICES,
    WORKERS,
    command_of,
    compose,
    copied_sources,
    dockerfile,
    environment_of,
    service,
)
from worker.config import ExecutorKind, WorkerConfig

ALL = (*ONCE, "redis", *SERVICES)
PORTS = Ports()
LISTENS = {
    "gateway": (PORTS.gateway, PORTS.gateway_probe()),
    "scheduler": (PORTS.scheduler, PORTS.scheduler_probe()),
    "kvmanager": (PORTS.kvmanager, PORTS.kvmanager_probe()),
    **{name: (PORTS.worker(0), PORTS.worker_probe(0)) for name in WORKERS},
}


@pytest.fixture
def first_config(tmp_path: Path) -> Path:
    """The file that `first-start` writes."""
    path = tmp_path / "quire.toml"
    write_once(path, make("main").text)
    return path


def loaded(name: str, first_config: Path, **variables: str) -> Any:
    """Read a container's command line and variables as its process does."""
    kind, *argv = command_of(name)
    environ = environment_of(name, **variables)
    if environ.get("QUIRE_CONFIG") == "/config/quire.toml":
        environ["QUIRE_CONFIG"] = str(first_config)
    if kind == "gateway":
        return gateway.config.load_config(argv, environ)[0]
    if kind == "kvmanager":
        return kvmanager.config.load_config(argv, environ)[0]
    cls = {"scheduler": SchedulerConfig, "worker": WorkerConfig}[kind]
    return load(cls, kind, argv=argv, environ=environ)


def test_the_file_follows_the_compose_specification() -> None:
    parsed = PyCompose.from_json(json.dumps(compose()))
    assert sorted(parsed.service_names()) == sorted(ALL)


def test_a_misspelt_key_would_be_found() -> None:
    document = compose()
    document["services"]["redis"]["helthcheck"] = {}
    with pytest.raises(ValueError, match="helthcheck"):
        PyCompose.from_json(json.dumps(document))


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_accepts_its_command_line_and_variables(name: str, first_config: Path) -> None:
    config = loaded(name, first_config)
    assert config.host == "0.0.0.0"
    check_bind(config.host, config.insecure, has_credentials=False)


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_those_of_the_launcher_and_of_the_health_check(name: str, first_config: Path) -> None:
    config = loaded(name, first_config)
    assert (config.port, config.probe_port) == LISTENS[name]
    assert environment_of(name)["QUIRE_PROBE_PORT"] == str(config.probe_port)


def test_addresses_name_the_service_that_listens_there(first_config: Path) -> None:
    door, scheduler = loaded("gateway", first_config), loaded("scheduler", first_config)
    manager, workers = loaded("kvmanager", first_config), [loaded(name, first_config) for name in WORKERS]
    redis = command_of("redis")
    assert redis[redis.index("--port") + 1] == str(PORTS.redis)
    assert door.redis_url == manager.redis_url == f"redis://redis:{PORTS.redis}/0"
    assert {door.scheduler, *(worker.scheduler for worker in workers)} == {f"scheduler:{PORTS.scheduler}"}
    links = {scheduler.kvmanager, *(worker.kvmanager for worker in workers)}
    assert links == {f"kvmanager:{PORTS.kvmanager}"}
    for name, worker in zip(WORKERS, workers, strict=True):
        assert (worker.name, worker.advertise) == (name, f"{name}:{PORTS.worker(0)}")


def test_only_the_gateway_is_published_and_only_on_loopback() -> None:
    published = {name: service(name)["ports"] for name in ALL if "ports" in service(name)}
    doors = (PORTS.gateway, PORTS.http)
    assert published == {"gateway": [f"127.0.0.1:{port}:{port}" for port in doors]}
    assert compose()["networks"]["inside"]["internal"] is True
    assert {name for name in (*SERVICES, "redis") if service(name)["networks"] != ["inside"]} == {"gateway"}


def test_the_model_that_is_pulled_is_the_one_that_is_served(first_config: Path) -> None:
    [pull, name] = command_of("models")
    cache = Path(environment_of("models")["QUIRE_CACHE"])
    assert pull == "pull"
    assert service("models")["volumes"] == [f"models:{cache}"]
    assert loaded("gateway", first_config).models() == {name: model_folder(cache, name)}
    for one in WORKERS:
        worker = loaded(one, first_config)
        assert (worker.model_name, worker.model_path) == (name, model_folder(cache, name))


def test_the_first_configuration_lies_where_it_is_read() -> None:
    kind, *argv = command_of("first-start")
    config = load(FirstStartConfig, "first_start", argv=argv, environ=environment_of("first-start"))
    assert kind == "first-start"
    assert service("first-start")["volumes"] == ["config:/config"]
    for name in ("gateway", "scheduler", "kvmanager"):
        assert environment_of(name)["QUIRE_CONFIG"] == str(config.out)
        assert "config:/config:ro" in service(name)["volumes"]


def test_what_runs_once_ends_well_before_what_needs_it_starts() -> None:
    for name in SERVICES:
        mounts = {mount.split(":")[0] for mount in service(name).get("volumes", [])}
        needed = {"models": "models", "config": "first-start"}
        waits_for = service(name)["depends_on"]
        for volume in mounts & set(needed):
            assert waits_for[needed[volume]] == {"condition": "service_completed_successfully"}
        others = set(waits_for) - set(ONCE)
        assert all(waits_for[other] == {"condition": "service_healthy"} for other in others)
    assert all(service(name)["restart"] == "no" for name in ONCE)


def test_a_container_has_longer_to_stop_than_its_process_takes(first_config: Path) -> None:
    limits = dict.fromkeys(SERVICES, DRAIN_LIMIT_S)
    limits |= {name: loaded(name, first_config).drain_limit_s for name in WORKERS}
    for name, limit_s in limits.items():
        assert parse_duration(service(name)["stop_grace_period"]) >= limit_s + 5


@pytest.mark.parametrize("name", ALL)
def test_every_container_has_few_rights_and_a_bound(name: str) -> None:
    one = service(name)
    assert one["read_only"] is True
    assert one["init"] is True
    assert one["cap_drop"] == ["ALL"]
    assert one["security_opt"] == ["no-new-privileges:true"]
    assert int(one["user"].split(":")[0]) > 0
    assert "privileged" not in one
    assert (
        not [mount for mount in one["volumes"] if mount.startswith(("/", "."))] if "volumes" in one else True
    )
    if name not in ONCE:
        assert one["restart"] == "unless-stopped"
        assert one["deploy"]["resources"]["limits"]["memory"]


def test_tenants_and_their_use_outlive_the_containers() -> None:
    assert set(compose()["volumes"]) == {"models", "config", "redis", "cache", "journal"}
    assert f"journal:{environment_of('gateway')['QUIRE_GATEWAY_JOURNAL']}" in service("gateway")["volumes"]
    assert service("redis")["volumes"] == ["redis:/data"]
    redis = command_of("redis")
    options = dict(zip(redis[1::2], redis[2::2], strict=True))
    assert (options["--dir"], options["--appendonly"]) == ("/data", "yes")
    assert options["--maxmemory-policy"] == "noeviction"


def test_only_workers_have_a_compiler_and_only_those_on_a_gpu_torch() -> None:
    arguments = {name: service(name)["build"]["args"] for name in (*ONCE, *SERVICES)}
    assert {name for name, given in arguments.items() if given["PACKAGES"]} == set(WORKERS)
    assert {name: given["EXTRAS"] for name, given in arguments.items() if given["EXTRAS"]} == {
        "worker-gpu-0": "torch,triton"
    }
    for name in WORKERS:
        cache = environment_of(name)["QUIRE_CACHE"]
        assert f"cache:{cache}" in service(name)["volumes"], "what it compiles and packs outlives it"
    assert len({service(name)["image"] for name in ("gateway", *WORKERS)}) == 3
    assert "deploy/ready.py" in copied_sources()


def test_a_gpu_worker_starts_only_when_asked_for_and_with_its_gpu(first_config: Path) -> None:
    assert {name: service(name)["profiles"] for name in ALL if "profiles" in service(name)} == {
        "worker-gpu-0": ["gpu"]
    }
    assert loaded("worker-gpu-0", first_config).executor is ExecutorKind.TRITON
    resources = service("worker-gpu-0")["deploy"]["resources"]
    [gpus] = resources["reservations"]["devices"]
    assert gpus == {"driver": "nvidia", "count": "1", "capabilities": ["gpu"]}
    assert resources["limits"]["memory"] == "24g"
    assert "reservations" not in service("worker-0")["deploy"]["resources"]


@pytest.mark.parametrize(("count", "ids", "ranks"), [("2", "", "2"), ("all", "2,3", "2"), ("all", "5", "")])
def test_how_many_gpus_and_which_is_said_by_variables(
    count: str, ids: str, ranks: str, first_config: Path
) -> None:
    """What is not said stays: one rank, and as many GPUs as the container sees."""
    said = {"QUIRE_GPU_COUNT": count, "QUIRE_GPU_IDS": ids, "QUIRE_GPU_RANKS": ranks}
    assert PyCompose.from_json(json.dumps(compose(**said)))
    [gpus] = service("worker-gpu-0", **said)["deploy"]["resources"]["reservations"]["devices"]
    assert gpus["count"] == count
    assert loaded("worker-gpu-0", first_config, **said).tensor_parallel_size == int(ranks or 1)
    visible = environment_of("worker-gpu-0", **said)["CUDA_VISIBLE_DEVICES"]
    assert visible == (ids or "0,1,2,3,4,5,6,7")


def test_a_number_of_gpus_that_is_none_would_be_found() -> None:
    with pytest.raises(ValueError, match="few"):
        PyCompose.from_json(json.dumps(compose(QUIRE_GPU_COUNT="few")))


def test_extras_that_images_are_built_with_exist_and_triton_is_torchs_to_choose() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for name in SERVICES:
        wanted = service(name)["build"]["args"]["EXTRAS"]
        assert set(filter(None, wanted.split(","))) <= set(extras)
    [drop] = [one.rest for one in dockerfile() if one.word == "RUN" and "sed" in one.rest]
    pattern = drop.partition("'/")[2].partition("/d'")[0]
    pins = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert [pin for pin in pins if re.match(pattern, pin)] == [
        pin for pin in pins if pin.startswith("triton==")
    ]
    assert pattern
