import dataclasses
from pathlib import Path

import pytest

from services.launcher.ports import Ports
from services.launcher.topology import Health, Model, Process, Suite, plan

BASE = Suite(
    models=(Model("small", Path("/m/small.gguf")),),
    num_workers=1,
    sim=False,
    python="python3",
    redis_binary="valkey-server",
    redis_folder=Path("/run"),
)


def by_name(suite: Suite) -> dict[str, Process]:
    return {process.name: process for process in plan(suite)}


def flag(process: Process, name: str) -> list[str]:
    words = process.command
    return [words[i + 1] for i, word in enumerate(words) if word == name]


def test_five_kinds_of_process_start_with_what_the_others_need_first() -> None:
    names = [process.name for process in plan(BASE)]
    assert names == ["redis", "kvmanager", "scheduler", "worker-0", "gateway"]


def test_default_ports_are_the_documented_ones() -> None:
    ports = {name: process.ports for name, process in by_name(BASE).items()}
    assert ports == {
        "redis": (6390,),
        "kvmanager": (50053, 9102),
        "scheduler": (50052, 9101),
        "worker-0": (50060, 9110),
        "gateway": (50051, 8000, 50054, 9100),
    }


def test_the_offset_moves_every_port_and_every_address() -> None:
    moved = by_name(dataclasses.replace(BASE, num_workers=3, ports=Ports(1000)))
    before = by_name(dataclasses.replace(BASE, num_workers=3))
    for name, process in moved.items():
        assert process.ports == tuple(port + 1000 for port in before[name].ports)
        assert not [w for w in process.command if w.startswith("127.0.0.1:") and int(w[10:]) < 51000]


def test_no_two_processes_share_a_port() -> None:
    ports = [port for process in plan(dataclasses.replace(BASE, num_workers=40)) for port in process.ports]
    assert len(ports) == len(set(ports))


@pytest.mark.parametrize(
    ("num_gpus", "num_workers", "seen"),
    [
        (0, 3, [None] * 3),
        (1, 3, [None] * 3),
        (4, 1, [None]),
        (2, 3, ["0", "1", "0"]),
        (8, 3, ["0,1", "2,3", "4,5"]),
    ],
)
def test_gpus_are_shared_out_among_the_workers(
    num_gpus: int, num_workers: int, seen: list[str | None]
) -> None:
    processes = by_name(dataclasses.replace(BASE, num_workers=num_workers, num_gpus=num_gpus))
    visible = {name: one.environment.get("CUDA_VISIBLE_DEVICES") for name, one in processes.items()}
    assert [visible.pop(f"worker-{index}") for index in range(num_workers)] == seen
    assert set(visible.values()) == {None}


def test_workers_are_dealt_to_the_models_in_turn() -> None:
    models = (Model("a", Path("/a")), Model("b", Path("/b")))
    suite = dataclasses.replace(BASE, models=models, num_workers=3)
    workers = [p for name, p in by_name(suite).items() if name.startswith("worker")]
    assert [flag(worker, "--model") for worker in workers] == [["a=/a"], ["b=/b"], ["a=/a"]]
    assert flag(by_name(suite)["gateway"], "--model") == ["a=/a", "b=/b"]


def test_fewer_workers_than_models_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2, one per model, got 1"):
        plan(dataclasses.replace(BASE, models=(Model("a", Path("/a")), Model("b", Path("/b")))))


def test_a_simulation_takes_the_tokeniser_where_there_is_one() -> None:
    processes = by_name(dataclasses.replace(BASE, sim=True))
    assert flag(processes["worker-0"], "--executor") == ["sim"]
    assert flag(by_name(BASE)["worker-0"], "--executor") == [], "what is configured counts, else native"
    assert flag(processes["gateway"], "--model") == ["small=/m/small.gguf"]


def test_a_redis_of_the_users_own_is_used_and_not_started() -> None:
    processes = by_name(dataclasses.replace(BASE, redis_url="redis://cache:6379/1"))
    assert "redis" not in processes
    assert flag(processes["kvmanager"], "--redis-url") == ["redis://cache:6379/1"]
    assert processes["gateway"].needs == ()


def test_the_embedded_redis_listens_on_loopback_and_keeps_what_this_run_knows() -> None:
    redis = by_name(BASE)["redis"]
    assert redis.health is Health.REDIS
    assert flag(redis, "--bind") == ["127.0.0.1"]
    assert flag(redis, "--appendonly") == ["yes"]
    assert flag(redis, "--dir") == [str(BASE.redis_folder)]


def test_with_tls_the_embedded_redis_listens_on_no_port_and_all_know_its_socket() -> None:
    processes = by_name(dataclasses.replace(BASE, has_tls=True, redis_folder=Path("/run/a b")))
    redis = processes["redis"]
    assert (flag(redis, "--port"), flag(redis, "--unixsocketperm"), redis.ports) == (["0"], ["700"], ())
    assert flag(redis, "--unixsocket") == ["/run/a b/redis.sock"]
    for name in ("kvmanager", "scheduler", "gateway"):
        assert flag(processes[name], "--redis-url") == ["unix:///run/a%20b/redis.sock"]
    yours = by_name(dataclasses.replace(BASE, has_tls=True, redis_url="rediss://cache:6379/1"))
    assert flag(yours["gateway"], "--redis-url") == ["rediss://cache:6379/1"]


def test_only_the_gateway_may_listen_beyond_loopback() -> None:
    suite = dataclasses.replace(BASE, host="0.0.0.0", insecure=True)
    hosts = {name: flag(process, "--host") for name, process in by_name(suite).items() if name != "redis"}
    assert hosts.pop("gateway") == ["0.0.0.0"]
    assert set(map(tuple, hosts.values())) == {("127.0.0.1",)}
    assert [name for name, process in by_name(suite).items() if "--insecure" in process.command] == [
        "gateway"
    ]


def test_the_kvmanager_hears_how_many_workers_to_expect() -> None:
    suite = dataclasses.replace(BASE, num_workers=3)
    assert flag(by_name(suite)["kvmanager"], "--expect-workers") == ["3"]


def test_memory_and_threads_reach_every_worker() -> None:
    suite = dataclasses.replace(BASE, kv_memory=2**29, threads=1, num_workers=2)
    worker = by_name(suite)["worker-1"]
    assert flag(worker, "--kv-memory") == [str(2**29)]
    assert flag(worker, "--threads") == ["1"]
