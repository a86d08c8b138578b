"""`echo` on /v1/completions: the prompt comes back in front, scored where logprobs were asked for."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from protos.types.v1 import types_pb2
from tests.fakes.byte_tokenizer import BOS
from tests.fakes.gateway_rig import generate
from tests.fakes.http_rig import HttpRig, http_rig
from tests.fakes.worker_server import says


@pytest.fixture
async def http() -> AsyncIterator[HttpRig]:
    async with http_rig() as started:
        yield started


def scored_by_id(http: HttpRig) -> None:
    http.rig.worker.logprob = lambda token_id: (-token_id / 256, [(token_id, -token_id / 256), (33, -9.0)])


async def completion(http: HttpRig, **body: Any) -> dict[str, Any]:
    answer = await http.post(**body)
    assert answer.status_code == 200, answer.text
    read: dict[str, Any] = answer.json()
    return read


async def test_the_prompt_stands_in_front_with_one_score_less_than_it_has_tokens(http: HttpRig) -> None:
    http.rig.worker.script = says(" you")
    scored_by_id(http)
    body = await completion(http, prompt="né", echo=True, logprobs=1, max_tokens=4)
    (choice,) = body["choices"]
    assert choice["text"] == "né you"
    logprobs = choice["logprobs"]
    data = "né you".encode()
    assert logprobs["tokens"] == ["", "n", "bytes:\\xc3", "bytes:\\xa9", *" you"]
    assert logprobs["token_logprobs"] == [None, *(-byte / 256 for byte in data)]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][1] == {"n": -110 / 256}
    assert logprobs["text_offset"] == [0, 0, 1, 1, 2, 3, 4, 5]
    assert body["usage"]["prompt_tokens"] == 4
    assert body["usage"]["completion_tokens"] == 4


@pytest.mark.failure("B045")
async def test_with_no_output_at_all_the_prompt_is_scored_and_nothing_else(http: HttpRig) -> None:
    scored_by_id(http)
    http.rig.worker.cached_tokens = 0
    body = await completion(http, prompt=[97, 98, 99], echo=True, logprobs=5, max_tokens=0)
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -98 / 256, -99 / 256]
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 0,
        "total_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    (submit,) = http.rig.worker.submits
    assert (submit.max_output_tokens, submit.num_prompt_logprobs) == (0, 5)
    (acquire,) = http.rig.scheduler.acquired
    assert acquire.cache_opt_out
    assert not acquire.block_hashes
    await http.rig.settled()


async def test_without_logprobs_only_the_text_comes_back(http: HttpRig) -> None:
    http.rig.worker.script = says("!")
    for max_tokens, text in ((1, "hello!"), (0, "hello")):
        body = await completion(http, echo=True, max_tokens=max_tokens)
        assert body["choices"][0]["text"] == text
        assert body["choices"][0]["logprobs"] is None
    first, _ = http.rig.worker.submits
    assert not first.HasField("num_prompt_logprobs")
    assert not http.rig.scheduler.acquired[0].cache_opt_out


@pytest.mark.parametrize("stream", [False, True])
async def test_each_choice_of_each_prompt_has_its_prompt_in_front(http: HttpRig, stream: bool) -> None:
    http.rig.worker.script = says("0", "1")
    scored_by_id(http)
    call: dict[str, Any] = {"prompt": ["ab", "c"], "n": 2, "echo": True, "logprobs": 0, "max_tokens": 1}
    texts, scores = ["", "", "", ""], [[], [], [], []]  # type: ignore[var-annotated]
    offsets: list[list[int]] = [[], [], [], []]
    if stream:
        answer = await http.post(stream=True, **call)
        lines = [
            line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: {")
        ]
        choices = [choice for line in lines for choice in orjson.loads(line)["choices"]]
    else:
        choices = (await completion(http, **call))["choices"]
    for choice in choices:
        texts[choice["index"]] += choice["text"]
        if choice["logprobs"] is not None:
            scores[choice["index"]] += choice["logprobs"]["token_logprobs"]
            offsets[choice["index"]] += choice["logprobs"]["text_offset"]
    assert texts == ["ab0", "ab1", "c0", "c1"]
    assert scores[1] == [None, -97 / 256, -98 / 256, -49 / 256]
    assert scores[2] == [None, -99 / 256, -48 / 256]
    assert offsets[1] == [0, 0, 1, 2]


async def test_scores_of_the_prompt_are_no_matter_for_stop_strings(http: HttpRig) -> None:
    http.rig.worker.script = says("xyz")
    body = await completion(http, prompt="stop", stop=["stop", "z"], echo=True, logprobs=0, max_tokens=9)
    assert body["choices"][0]["text"] == "stopxy"
    assert len(body["choices"][0]["logprobs"]["tokens"]) == len("stop") + 1 + 3


@pytest.mark.failure("B098")
async def test_wrong_calls_are_refused_by_field(http: HttpRig) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": -1, "echo": True}),
        ("min_tokens", {"max_tokens": 0, "min_tokens": 1, "echo": True}),
        ("logprobs", {"logprobs": 21, "echo": True}),
        ("echo", {"echo": "yes"}),
        *(
            ("prompt", {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 1})
            for prompt in ("", [], [""], [[]], ["good", ""])
        ),
    ]
    for field, body in wrong:
        answer = await http.post(**body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["param"].startswith(field), body
    chat = await http.post("/v1/chat/completions", echo=True)
    assert chat.json()["error"]["param"] == "echo"
    assert http.rig.worker.submits == []


async def test_a_prompt_of_the_whole_context_is_scored_where_nothing_is_to_follow() -> None:
    async with http_rig(max_context_tokens=32) as http:
        ids = [97] * 32
        assert (await http.post(prompt=ids, echo=True, logprobs=0, max_tokens=1)).status_code == 400
        body = await completion(http, prompt=ids, echo=True, logprobs=0, max_tokens=0)
        assert len(body["choices"][0]["logprobs"]["token_logprobs"]) == 32


async def test_scores_survive_a_broken_connection(http: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.rpc.gateway_worker_link.DEAD_AFTER_S", 60.0)
    scored_by_id(http)
    http.rig.worker.is_open.clear()
    asking = asyncio.create_task(completion(http, prompt="abcdefgh", echo=True, logprobs=1, max_tokens=2))
    await http.rig.until(lambda: http.rig.worker.running)
    await http.rig.worker.close_port()
    http.rig.worker.is_open.set()
    await http.rig.until(lambda: http.rig.worker.num_tokens == 2)
    await http.rig.worker.start()
    body = await asking
    assert body["choices"][0]["logprobs"]["token_logprobs"][:9] == [None, *(-b / 256 for b in b"abcdefgh")]


async def test_a_worker_that_ends_without_all_scores_is_at_fault(http: HttpRig) -> None:
    http.rig.worker.is_scoring = False
    answer = await http.post(echo=True, logprobs=0, max_tokens=1)
    assert answer.status_code == 500
    await http.rig.settled()
    assert http.rig.worker.running == {}


async def test_the_grpc_door_gives_it_as_one_event_before_the_text(http: HttpRig) -> None:
    scored_by_id(http)
    http.rig.worker.script = says("!")
    answer = await generate(http.rig, prompt="ab", echo=True, logprobs=1, return_token_ids=True)
    kinds = [message.WhichOneof("event") for message in answer.messages]
    assert kinds[:3] == ["started", "echo", "delta"]
    assert kinds.count("echo") == 1
    (echo,) = answer.of("echo")
    assert echo.text == "ab"
    assert list(echo.token_ids) == [BOS, 97, 98]
    assert [token.logprob for token in echo.logprobs] == [0, -97 / 256, -98 / 256]
    assert [len(token.top) for token in echo.logprobs] == [0, 1, 1]
    assert answer.receipt.cache.miss_reason == types_pb2.MISS_REASON_OPT_OUT
