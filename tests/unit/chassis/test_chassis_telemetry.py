import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.chassis import telemetry
from services.chassis.fatal import BusyPort, ConfigError
from services.chassis.logging import LEVELS
from services.chassis.metrics import MAX_LABEL_SETS, Metrics, sample_loop_lag
from services.chassis.probes import Probes

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_callers_context_passes_through_when_tracing_is_off() -> None:
    span = telemetry.start_span("gateway.generate", PARENT)
    assert telemetry.inject(span) == PARENT
    assert telemetry.trace_id(PARENT) == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    "text", ["", "00", "00-xyz-1-1", PARENT.replace("0af765", "00g765"), "ff" + PARENT[2:]]
)
def test_a_malformed_traceparent_is_none(text: str) -> None:
    assert telemetry.extract(text) is None


def test_without_any_context_there_is_nothing_to_inject() -> None:
    assert telemetry.inject() == ""


@pytest.mark.parametrize("exporter", ["jaeger", "file:/nowhere/spans"])
def test_an_unusable_exporter_is_refused_at_start(exporter: str) -> None:
    with pytest.raises(ConfigError):
        telemetry.configure_tracing("test", exporter)


def test_spans_reach_the_file_with_their_parents(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    source = f"""
from services.chassis import telemetry
stop = telemetry.configure_tracing("gateway", "file:{path}")
with telemetry.span("gateway.generate", {PARENT!r}, tokens=3) as outer:
    outer.add_event("first_token")
    with telemetry.span("scheduler.place"):
        pass
try:
    with telemetry.span("worker.step"):
        raise RuntimeError("canary")
except RuntimeError:
    pass
stop()
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
    text = path.read_text()
    inner, outer, failed = (json.loads(line) for line in text.splitlines())
    assert (outer["name"], outer["parent_id"], outer["attributes"]) == (
        "gateway.generate",
        "b7ad6b7169203331",
        {"tokens": 3},
    )
    assert outer["events"][0]["name"] == "first_token"
    assert (inner["parent_id"], inner["trace_id"]) == (outer["span_id"], PARENT.split("-")[1])
    assert failed["status"] == "ERROR"
    assert "canary" not in text


@pytest.mark.failure("B158")
def test_impossible_recordings_are_counted_and_harmless() -> None:
    metrics = Metrics()
    counter = metrics.counter("quire_things_total", "Things", ["state"])
    histogram = metrics.histogram("quire_wait_seconds", "Waits")
    counter.add(-1, "waiting")
    counter.add(float("nan"), "waiting")
    counter.add(1)
    histogram.observe(-0.5)
    counter.add(2, "waiting")
    text = metrics.render().decode()
    assert 'quire_things_total{state="waiting"} 2.0' in text
    assert 'quire_metric_faults_total{metric="quire_things_total"} 3.0' in text
    assert 'quire_metric_faults_total{metric="quire_wait_seconds"} 1.0' in text


def test_labels_are_bounded() -> None:
    metrics = Metrics()
    gauge = metrics.gauge("quire_level", "Level", ["name"])
    for n in range(MAX_LABEL_SETS + 50):
        gauge.set(1, f"n{n}")
    text = metrics.render().decode()
    assert text.count("quire_level{") == MAX_LABEL_SETS + 1
    assert 'quire_level{name="other"} 1.0' in text


def test_a_gauge_can_be_set_right_before_each_exposition() -> None:
    metrics = Metrics()
    gauge = metrics.gauge("quire_level", "Level")
    levels = iter((3, 4))
    metrics.before_render(lambda: gauge.set(next(levels)))
    assert "quire_level 3.0" in metrics.render().decode()
    assert "quire_level 4.0" in metrics.render().decode()


async def test_loop_lag_is_observed() -> None:
    metrics = Metrics()
    sampler = asyncio.create_task(sample_loop_lag(metrics, period_s=0.001))
    async with asyncio.timeout(30):
        while not metrics.registry.get_sample_value("quire_event_loop_lag_seconds_count"):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    sampler.cancel()


async def get(port: int, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def test_probes_tell_live_ready_and_metrics() -> None:
    state = {"ready": False}
    metrics = Metrics()
    metrics.counter("quire_things_total", "Things").add(3)
    async with Probes(0, is_ready=lambda: state["ready"], metrics=metrics) as probes:
        assert await get(probes.port, "/healthz") == (200, "live\n")
        assert (await get(probes.port, "/readyz"))[0] == 503
        state["ready"] = True
        assert await get(probes.port, "/readyz?x=1") == (200, "ready\n")
        state["ready"] = False
        assert (await get(probes.port, "/readyz"))[0] == 503
        assert (await get(probes.port, "/healthz"))[0] == 200, "one that is not ready is not restarted"
        assert "quire_things_total 3.0" in (await get(probes.port, "/metrics"))[1]
        assert (await get(probes.port, "/"))[0] == 404
        with pytest.raises(BusyPort):
            await Probes(probes.port, is_ready=lambda: True).start()


@pytest.mark.failure("B180")
def test_log_lines_are_json_with_ids_and_without_what_is_private() -> None:
    source = """
import logging, structlog
from services.chassis.logging import configure_logging
configure_logging("worker")
log = structlog.get_logger()
log.info("request_ended", request_id="r1", prompt="canary", api_key="canary", num_tokens=3, value=object())
log.debug("hidden")
try:
    raise KeyError("canary")
except KeyError:
    log.error("call_failed", exc_info=True)
    logging.getLogger("library").exception("canary")
"""
    ran = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True
    )
    first, second, third = (json.loads(line) for line in ran.stderr.splitlines())
    assert ran.stdout == ""
    assert first | {"timestamp": 0, "value": 0} == {
        "event": "request_ended",
        "level": "info",
        "service": "worker",
        "request_id": "r1",
        "num_tokens": 3,
        "prompt": "[dropped]",
        "api_key": "[dropped]",
        "timestamp": 0,
        "value": 0,
    }
    assert "KeyError" in second["exception"]
    assert third["logger"] == "library"
    assert "canary" not in ran.stderr
    assert set(LEVELS) == {"debug", "info", "warning", "error"}
