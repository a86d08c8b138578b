"""What callers say and are told is nowhere afterwards: not in logs, metrics, traces or Redis."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from services.client import AsyncClient
from services.domain.errors import ServeError
from tests.e2e.stack import Stack
from tests.e2e.stack_setup import KEYS, MODEL
from tests.e2e.waiting import until

CANARY = "canary7q"
"""In everything that is sent; each place adds its own letters, so that a find says where it came from."""
GREEN = {"authorization": f"Bearer {KEYS['green']}"}
PROCESSES = ("gateway", "scheduler", "kvmanager", "worker-0", "worker-1")


def chat(**more: Any) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": f"{CANARY}-system"},
        {"role": "user", "content": f"{CANARY}-user", "name": f"{CANARY}-name"},
    ]
    return {"model": MODEL, "messages": messages, "max_tokens": 24, "stop": [f"{CANARY}-stop"]} | more


async def call_over_http(stack: Stack) -> list[str]:
    """Succeed, fail in every way that a caller can bring about, and leave; return what was answered."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"x": f"{CANARY}-tool"}}}]
    headers = {
        "x-note": f"{CANARY}-header",
        "traceparent": f"{CANARY}-trace",
        "user-agent": f"{CANARY}-agent",
    }
    path = "/v1/chat/completions"
    base = f"http://127.0.0.1:{stack.ports.http}"
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=60) as web:
        done = [
            await web.post(path, json=chat(ignore_eos=True)),
            await web.post(path, json=chat(cache_salt=f"{CANARY}-salt"), headers=GREEN),
        ]
        assert [answer.status_code for answer in done] == [200, 200]
        stream = await web.post(path, json=chat(stream=True, logprobs=True, ignore_eos=True))
        assert stream.text.endswith("[DONE]\n\n")
        refused = [
            (400, await web.post(path, json=chat(temperature=9))),
            (400, await web.post(path, json=chat(tools=tools))),
            (400, await web.post(path, json=chat(messages=[{"role": f"{CANARY}-role", "content": "x"}]))),
            (400, await web.post(path, content=f'{{"{CANARY}-json": ')),
            (400, await web.post(path, json=chat(seed=f"{CANARY}-seed"))),
            (401, await web.post(path, json=chat(), headers={"authorization": f"Bearer {CANARY}-key"})),
            (401, await web.post(path, json=chat(), headers={"x-api-key": f"{CANARY}-key"})),
            (404, await web.get(f"/v1/models/{CANARY}-model")),
            (404, await web.post(f"/{CANARY}-path")),
            (404, await web.post(path, json=chat(model=f"{CANARY}-model"))),
            (429, await web.post(path, json=chat(n=7), headers=GREEN)),
        ]
        for status, answer in refused:
            assert answer.status_code == status, answer.text
        with pytest.raises(httpx.ReadTimeout):
            await web.post(
                path, json=chat(max_tokens=900, ignore_eos=True), timeout=httpx.Timeout(30, read=0.3)
            )
    return [answer.json()["choices"][0]["message"]["content"] for answer in done]


async def call_over_grpc(stack: Stack) -> list[str]:
    """The same by the other door."""
    prompt = f"{CANARY}-prompt"
    async with stack.client() as client, stack.client("green") as green:
        whole = await client.generate_text(prompt, max_output_tokens=24, ignore_eos=True, stop=[f"{CANARY}!"])
        async with client.generate(prompt, max_output_tokens=900, ignore_eos=True) as stream:
            async for _ in stream.text():
                break
        for one, options in ((client, {"temperature": 9.0}), (green, {"n": 7}), (client, {"model": CANARY})):
            with pytest.raises(ServeError):
                await one.generate_text(prompt, **options)  # type: ignore[arg-type]
    address = f"127.0.0.1:{stack.ports.gateway}"
    async with AsyncClient(address, api_key=f"{CANARY}-key", model=MODEL) as stranger:
        with pytest.raises(ServeError):
            await stranger.generate_text(prompt)
    return [whole.text]


async def kept_in_redis(stack: Stack) -> bytes:
    """Return all keys and values."""
    found: list[object] = []
    async with stack.redis() as redis:
        readers = {b"string": redis.get, b"hash": redis.hgetall, b"set": redis.smembers}
        async for key in redis.scan_iter():
            kind = await redis.type(key)
            if kind == b"zset":
                found.append((key, await redis.zrange(key, 0, -1, withscores=True)))
            elif kind == b"list":
                found.append((key, await redis.lrange(key, 0, -1)))
            elif kind == b"stream":
                found.append((key, await redis.xrange(key)))
            else:
                found.append((key, await readers[kind](key)))
    return repr(found).encode()


def files_of(stack: Stack) -> Iterator[tuple[str, bytes]]:
    for path in stack.folder.rglob("*"):
        if path.is_file() and path.suffix in (".log", ".jsonl"):
            yield path.name, path.read_bytes()


@pytest.mark.failure("B180")
async def test_words_of_callers_and_answers_are_kept_nowhere(calm: Stack) -> None:
    answers = [*await call_over_http(calm), *await call_over_grpc(calm)]
    assert all(len(answer) > 20 for answer in answers)
    await until(
        "everything settled and every span written",
        lambda: asyncio.to_thread(lambda: dict(files_of(calm))["gateway.log"].count(b"request_finished")),
        limit_s=60,
        good=lambda finished: finished >= 10,
    )
    places = dict(files_of(calm)) | {"redis": await kept_in_redis(calm)}
    async with httpx.AsyncClient() as web:
        for name in PROCESSES:
            with contextlib.suppress(httpx.ConnectError):
                answer = await web.get(f"http://127.0.0.1:{calm.probe_port(name)}/metrics")
                places[f"metrics of {name}"] = answer.content
    assert {"gateway.log", "spans.jsonl", "redis", *(f"metrics of {name}" for name in PROCESSES)} <= set(
        places
    )
    # The search itself works: what may be kept is found.
    assert b"green" in places["redis"]
    assert b"QUOTA_EXCEEDED" in places["gateway.log"]
    secrets = [CANARY, *KEYS.values(), *(answer[:40] for answer in answers)]
    found = [(name, one) for name, data in places.items() for one in secrets if one.encode() in data]
    assert found == []
