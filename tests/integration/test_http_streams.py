"""Streams of the HTTP door while clients leave, do not read, and workers die or stall."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import openai
import pytest
import structlog

from gateway.core import deadlines
from gateway.http.owner import Patience
from services.domain.errors import ErrorDetail, QuotaExceeded
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.gateway_rig import TENANTS, use_by
from tests.fakes.http_rig import HttpRig, http_rig
from tests.fakes.worker_server import endless, says

LONG = {"max_tokens": 2000, "ignore_eos": True}


@pytest.fixture
async def http() -> AsyncIterator[HttpRig]:
    async with http_rig() as started:
        yield started


async def nothing_is_held(http: HttpRig) -> None:
    await http.rig.settled()
    await http.rig.until(lambda: http.rig.worker.running == {})
    for tenant in TENANTS:
        use = await use_by(http.rig.quota, tenant)
        assert (use.num_leases, use.reserved_tokens) == (0, 0)


async def events_of(answer: httpx.Response) -> AsyncIterator[str]:
    """Yield the events of a stream: their data, or the comment with its colon."""
    async for line in answer.aiter_lines():
        if line:
            yield line.removeprefix("data: ")


@pytest.mark.failure("B001")
@pytest.mark.failure("B010")
@pytest.mark.parametrize("n", [1, 4])
async def test_a_client_that_hangs_up_its_stream_frees_the_worker(http: HttpRig, n: int) -> None:
    http.rig.worker.script, http.rig.worker.step_s = endless, 0.02
    for _ in range(3):
        stream = await http.client.completions.create(
            model="tiny", prompt="x", n=n, stream=True, max_tokens=2000
        )
        async for _chunk in stream:
            break
        await stream.close()
    await http.rig.until(lambda: len(http.rig.worker.cancelled) == 3)
    await nothing_is_held(http)
    assert http.rig.metric("quire_requests_finished_total", reason="CANCELLED") == 3


@pytest.mark.failure("B002")
@pytest.mark.parametrize("prompts", [1, 3])
async def test_a_client_that_leaves_a_unary_call_frees_the_worker(http: HttpRig, prompts: int) -> None:
    http.rig.worker.script, http.rig.worker.step_s = endless, 0.02
    call = asyncio.create_task(http.post(prompt=["x"] * prompts, **LONG))
    await http.rig.until(lambda: len(http.rig.worker.running) == prompts)
    call.cancel()
    await http.rig.until(lambda: len(http.rig.worker.cancelled) == prompts)
    await nothing_is_held(http)
    http.rig.worker.script = says("alive")
    assert (await http.post()).json()["choices"][0]["text"] == "alive"


@pytest.mark.failure("B003")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_it_waits_leaves_the_queue(http: HttpRig, stream: bool) -> None:
    http.rig.scheduler.holds = True
    calls = [asyncio.create_task(http.post(stream=stream)) for _ in range(16)]
    await http.rig.until(lambda: len(http.rig.scheduler.waiting) == 16)
    for call in calls:
        call.cancel()
    await http.rig.until(lambda: not http.rig.scheduler.waiting)
    await nothing_is_held(http)
    assert http.rig.worker.submits == []


@pytest.mark.slow
@pytest.mark.failure("B011")
async def test_a_thousand_calls_leave_nothing_behind(http: HttpRig) -> None:
    async def one(number: int) -> None:
        match number % 4:
            case 0:
                assert (await http.post()).status_code == 200
            case 1:
                assert (await http.post(temperature=9)).status_code == 400
            case 2:
                assert (await http.post(stream=True)).text.endswith("[DONE]\n\n")
            case _:
                call = asyncio.create_task(http.post(prompt="y" * 50, **LONG))
                await asyncio.sleep(0)
                call.cancel()

    for begin in range(0, 1000, 50):
        await asyncio.gather(*(one(number) for number in range(begin, begin + 50)))
    await nothing_is_held(http)


@pytest.mark.failure("B076")
async def test_a_lost_worker_is_told_in_band_with_usage_and_without_done(
    http: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    http.rig.worker.script, http.rig.worker.step_s = endless, 0.02
    body = {"model": "tiny", "prompt": "x", "stream": True, "stream_options": {"include_usage": True}, **LONG}
    seen: list[str] = []
    async with http.web.stream("POST", "/v1/completions", json=body) as answer:
        async for event in events_of(answer):
            seen.append(event)
            if len(seen) == 3:
                monkeypatch.setattr("services.rpc.gateway_worker_link.DEAD_AFTER_S", 0.2)
                await http.rig.worker.stop()
    error = json.loads(seen[-1])["error"]
    assert (error["code"], error["type"]) == ("WORKER_LOST", "service_unavailable_error")
    assert error["usage"]["completion_tokens"] > 0
    assert "[DONE]" not in seen
    assert not any('"finish_reason":"' in event for event in seen)
    await nothing_is_held_but_running(http)


async def nothing_is_held_but_running(http: HttpRig) -> None:
    """As `nothing_is_held`, where the worker is dead."""
    http.rig.worker.running.clear()
    await nothing_is_held(http)


@pytest.mark.failure("B076")
async def test_a_fault_in_the_middle_reaches_the_official_client_as_an_error(
    http: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def token_bytes(self: ByteTokenizer, token_id: int) -> bytes:
        if token_id == ord("z"):
            raise KeyError("z")
        return bytes([token_id])

    monkeypatch.setattr(ByteTokenizer, "token_bytes", token_bytes)
    http.rig.worker.script, http.rig.worker.step_s = says("abcdefz"), 0.05
    stream = await http.client.completions.create(model="tiny", prompt="x", stream=True)
    text = ""
    with structlog.testing.capture_logs():  # noqa: SIM117
        with pytest.raises(openai.APIError, match="correlation id"):  # noqa: PT012
            async for chunk in stream:
                text += chunk.choices[0].text
                assert chunk.choices[0].finish_reason is None
    assert "abcdef".startswith(text)
    assert text
    await nothing_is_held(http)


@pytest.mark.failure("B082")
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_that_waits_shows_that_it_lives(
    http: HttpRig, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(deadlines, "HEARTBEAT_S", 0.05)
    http.rig.worker.is_open.clear()
    body = {"model": "tiny", "prompt": "x", "messages": [{"role": "user", "content": "x"}], "stream": True}
    num_beats = 0
    async with http.web.stream("POST", path, json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for event in events_of(answer):
            if event == ": waiting":
                num_beats += 1
                if num_beats == 3:
                    http.rig.worker.is_open.set()
            last = event
    assert num_beats >= 3
    assert last == "[DONE]"


@pytest.mark.failure("B082")
async def test_a_completion_s_stream_begins_when_a_worker_has_taken_it(http: HttpRig) -> None:
    http.rig.worker.script, http.rig.worker.step_s = says("ab"), 0.3
    body = {"model": "tiny", "prompt": "x", "stream": True}
    async with http.web.stream("POST", "/v1/completions", json=body) as answer:
        events = [event async for event in events_of(answer)]
    assert events[0] == ": started"


async def test_what_is_refused_before_anything_was_sent_has_its_own_status(http: HttpRig) -> None:
    http.rig.scheduler.holds = True
    call = asyncio.create_task(http.post(stream=True))
    await http.rig.until(lambda: http.rig.scheduler.acquired)
    http.rig.parts.table.fail_all(partial(QuotaExceeded, "spent", ErrorDetail(retry_after_s=7)))
    answer = await call
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")


@pytest.mark.failure("B016")
async def test_a_client_that_never_reads_is_cut_off_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.app.Patience", partial(Patience, 0.2))
    async with http_rig(max_unread_tokens=64) as http:
        http.rig.worker.script = endless
        http.rig.worker.logprob = lambda token_id: (-1.0, [(97 + n, -1.0 - n) for n in range(20)])
        body: dict[str, Any] = {
            "model": "tiny", "messages": [{"role": "user", "content": "x"}], "stream": True, "n": 8,
            "logprobs": True, "top_logprobs": 20, "max_tokens": 1000,
        }  # fmt: skip
        data = json.dumps(body).encode()
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.connect(("127.0.0.1", http.port))
            stuck.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
                % len(data)
                + data
            )
            await http.rig.until(
                lambda: http.rig.metric("quire_requests_finished_total", reason="slow_reader") == 1, 30
            )
            await http.rig.until(lambda: not http.server.num_connections)
        await nothing_is_held(http)
        assert http.rig.worker.num_tokens < 8 * 1000
