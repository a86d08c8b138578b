"""The official `openai` package against the HTTP door: what its users rely on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from services.domain.errors import ErrorDetail, NoWorker, QueueFull
from tests.fakes.byte_tokenizer import EOS
from tests.fakes.http_rig import KEY, HttpRig, http_rig, openai_client
from tests.fakes.worker_server import says

HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def http() -> AsyncIterator[HttpRig]:
    async with http_rig() as started:
        yield started


async def test_models_are_listed_and_found(http: HttpRig) -> None:
    models = await http.client.models.list()
    assert [(model.id, model.object, model.owned_by) for model in models.data] == [("tiny", "model", "quire")]
    assert (await http.client.models.retrieve("tiny")).id == "tiny"
    with pytest.raises(openai.NotFoundError) as refused:
        await http.client.models.retrieve("other/model")
    assert refused.value.code == "UNKNOWN_MODEL"


async def test_a_chat_is_answered_with_usage(http: HttpRig) -> None:
    http.rig.worker.cached_tokens = 4
    answer = await http.client.chat.completions.create(model="tiny", messages=HELLO)
    choice = answer.choices[0]
    assert (answer.object, answer.model) == ("chat.completion", "tiny")
    assert (choice.message.role, choice.message.content) == ("assistant", "hello world")
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("user:hello|")
    assert answer.usage.completion_tokens == 11
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 11
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


async def test_text_ids_and_lists_of_either_are_completed_in_order(http: HttpRig) -> None:
    http.rig.worker.script = lambda submit, choice: [submit.prompt_ids[-1]] * 3
    prompts: list[Any] = ["ab", [97, 98], ["a", "b"], [[97], [98, 99]]]
    texts = []
    for prompt in prompts:
        answer = await http.client.completions.create(model="tiny", prompt=prompt)
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        texts.append([choice.text for choice in answer.choices])
    assert texts == [["bbb"], ["bbb"], ["aaa", "bbb"], ["aaa", "ccc"]]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 6)


async def test_several_prompts_with_several_choices_are_numbered_by_prompt(http: HttpRig) -> None:
    http.rig.worker.script = lambda submit, choice: [submit.prompt_ids[-1], 48 + choice]
    answer = await http.client.completions.create(model="tiny", prompt=["a", "b"], n=2)
    assert [choice.text for choice in answer.choices] == ["a0", "a1", "b0", "b1"]
    stream = await http.client.completions.create(model="tiny", prompt=["a", "b"], n=2, stream=True)
    texts = [""] * 4
    async for chunk in stream:
        for part in chunk.choices:
            texts[part.index] += part.text
    assert texts == ["a0", "a1", "b0", "b1"]


@pytest.mark.failure("B077")
@pytest.mark.failure("B075")
async def test_choices_of_a_stream_are_kept_apart_and_usage_comes_last(http: HttpRig) -> None:
    texts = ["a", "bee", "sea shell"]
    http.rig.worker.script, http.rig.worker.step_s = says(*texts), 0.001
    stream = await http.client.chat.completions.create(
        model="tiny", messages=HELLO, n=3, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    built, ends = ["", "", ""], []
    for chunk in chunks[:-1]:
        assert chunk.usage is None
        (choice,) = chunk.choices
        assert choice.index not in ends
        built[choice.index] += choice.delta.content or ""
        if choice.finish_reason is not None:
            assert choice.finish_reason == "length"
            ends.append(choice.index)
    assert built == texts
    assert sorted(ends) == [0, 1, 2]
    assert [chunk.choices[0].delta.role for chunk in chunks[:3]] == ["assistant"] * 3
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 13
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.failure("B079")
@pytest.mark.parametrize("stream", [False, True])
async def test_every_token_has_its_logprob_once(http: HttpRig, stream: bool) -> None:
    text = "a👍 stop it"
    data = text.encode()
    http.rig.worker.script, http.rig.worker.step_s = says(text), 0.001
    http.rig.worker.logprob = lambda token_id: (-token_id / 256, [(98, -0.1), (99, -0.2), (100, -0.3)])
    options: Any = {"stop": ["stop!"], "logprobs": True, "top_logprobs": 3}
    content: list[Any] = []
    if stream:
        chunks = await http.client.chat.completions.create(
            model="tiny", messages=HELLO, stream=True, **options
        )
        async for chunk in chunks:
            if chunk.choices[0].logprobs is not None:
                content += chunk.choices[0].logprobs.content or []
    else:
        answer = await http.client.chat.completions.create(model="tiny", messages=HELLO, **options)
        assert answer.choices[0].logprobs is not None
        content = answer.choices[0].logprobs.content or []
    assert b"".join(bytes(entry.bytes) for entry in content) == data
    assert [entry.logprob for entry in content] == [-byte / 256 for byte in data]
    for entry in content:
        named = {tuple(one.bytes or ()) for one in entry.top_logprobs}
        assert tuple(entry.bytes) in named
        assert {(98,), (99,), (100,)} <= named


@pytest.mark.failure("B079")
@pytest.mark.parametrize("stream", [False, True])
async def test_offsets_of_a_completion_point_into_its_text(http: HttpRig, stream: bool) -> None:
    text = "né 👍 stop it"
    http.rig.worker.script, http.rig.worker.step_s = says(text), 0.001
    http.rig.worker.logprob = lambda token_id: (-1.0, [(98, -0.1)])
    parts: list[Any] = []
    call = {"model": "tiny", "prompt": "x", "logprobs": 1, "stop": ["stop!"], "max_tokens": 99}
    if stream:
        async for chunk in await http.client.completions.create(**call, stream=True):  # type: ignore
            if chunk.choices[0].logprobs is not None:
                parts.append(chunk.choices[0].logprobs)
    else:
        answer = await http.client.completions.create(**call)  # type: ignore
        parts.append(answer.choices[0].logprobs)
    tokens = [token for part in parts for token in part.tokens]
    offsets = [offset for part in parts for offset in part.text_offset]
    assert len(tokens) == len(text.encode())
    for token, offset in zip(tokens, offsets, strict=True):
        assert token.startswith("bytes:") or text[offset] == token
    assert tokens[1:3] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert offsets[1:4] == [1, 1, 2]


@pytest.mark.failure("B080")
@pytest.mark.failure("B081")
async def test_infinite_logprobs_are_clamped_and_zero_alternatives_are_not_none(http: HttpRig) -> None:
    http.rig.worker.logprob = lambda token_id: (float("-inf"), [])
    answer = await http.client.completions.create(model="tiny", prompt="x", logprobs=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs == [-9999.0] * 11
    assert logprobs.top_logprobs is None
    chat = await http.client.chat.completions.create(
        model="tiny", messages=HELLO, logprobs=True, top_logprobs=0
    )
    assert chat.choices[0].logprobs is not None
    assert {len(entry.top_logprobs) for entry in chat.choices[0].logprobs.content or []} == {0}
    assert http.rig.worker.submits[0].sampling.num_logprobs == 0


async def test_parameters_reach_the_worker(http: HttpRig) -> None:
    await http.client.chat.completions.create(
        model="tiny", messages=HELLO, seed=-1, temperature=0, max_completion_tokens=7, stop="q",
        presence_penalty=1.5, logit_bias={"5": -100},
        extra_body={"ignore_eos": True, "min_tokens": 3, "top_k": -1, "min_p": 0.5,
                    "stop_token_ids": [9], "repetition_penalty": 1.25},
    )  # fmt: skip
    submit = http.rig.worker.submits[0]
    sampling = submit.sampling
    assert (sampling.seed, sampling.temperature, sampling.top_k) == (2**64 - 1, 0, 0)
    assert (sampling.min_p, sampling.repetition_penalty, sampling.presence_penalty) == (0.5, 1.25, 1.5)
    assert dict(sampling.logit_bias) == {5: -100}
    assert (submit.max_output_tokens, submit.min_output_tokens) == (7, 3)
    assert list(submit.stop_token_ids) == [9]
    assert EOS not in submit.stop_token_ids


async def test_parts_of_a_message_are_joined_and_a_developer_is_the_system(http: HttpRig) -> None:
    messages: Any = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    await http.client.chat.completions.create(model="tiny", messages=messages)
    assert bytes(http.rig.worker.submits[0].prompt_ids) == b"system:be brief|user:a\nb|"


async def test_a_wrong_field_is_a_bad_request_that_names_it_in_the_body_s_words(http: HttpRig) -> None:
    chat = http.client.chat.completions.create
    cases: list[tuple[dict[str, Any], str]] = [
        ({"temperature": 3}, "temperature"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 10**6}, "max_tokens"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"extra_body": {"min_tokens": -1}}, "min_tokens"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"logit_bias": {"260": 1}}, "logit_bias"),
    ]
    for extra, field in cases:
        with pytest.raises(openai.BadRequestError) as refused:
            await chat(**({"model": "tiny", "messages": HELLO} | extra))
        assert refused.value.param == field
        assert refused.value.type == "invalid_request_error"
        assert str(refused.value.body["message"]).startswith(field)  # type: ignore[index]
    with pytest.raises(openai.BadRequestError) as refused:
        await http.client.completions.create(model="tiny", prompt=["good", "x" * 3000])
    assert refused.value.param == "prompt[1]"
    with pytest.raises(openai.BadRequestError) as refused:
        await http.client.completions.create(model="tiny", prompt=[[1], [260]])
    assert refused.value.param == "prompt[1]"
    assert http.rig.worker.running == {}


async def test_errors_have_the_client_s_own_classes(http: HttpRig) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await http.client.completions.create(model="other", prompt="x")
    assert (unknown.value.code, unknown.value.param) == ("UNKNOWN_MODEL", "model")
    async with openai_client(http.port, "wrong-key") as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()
    http.rig.scheduler.rejects = QueueFull("full", ErrorDetail(retry_after_s=2.5))
    with pytest.raises(openai.RateLimitError) as full:
        await http.client.completions.create(model="tiny", prompt="x")
    assert full.value.code == "QUEUE_FULL"
    assert full.value.response.headers["retry-after"] == "3"
    http.rig.scheduler.rejects = NoWorker("none")
    with pytest.raises(openai.InternalServerError) as none:
        await http.client.completions.create(model="tiny", prompt="x")
    assert none.value.status_code == 503
    assert "retry-after" in none.value.response.headers


async def test_a_spent_quota_shows_its_numbers_and_says_when_no_retry_helps(http: HttpRig) -> None:
    with pytest.raises(openai.RateLimitError) as refused:
        await http.client.completions.create(model="tiny", prompt=["x"] * 5, n=16, max_tokens=1)
    headers = refused.value.response.headers
    assert refused.value.code == "QUOTA_EXCEEDED"
    assert headers["x-ratelimit-limit-requests"] == "64"
    assert headers["retry-after"] == "1"
    await http.rig.settled()


async def test_the_synchronous_client_streams_too(http: HttpRig) -> None:
    def read() -> str:
        with OpenAI(api_key=KEY, base_url=f"{http.url}/v1", max_retries=0) as client:
            stream = client.completions.create(model="tiny", prompt="x", stream=True)
            return "".join(chunk.choices[0].text for chunk in stream)

    assert await asyncio.to_thread(read) == "hello world"


async def test_without_a_key_a_local_call_is_the_tenant_local(http: HttpRig) -> None:
    raw = http.client.completions.with_raw_response
    await raw.create(model="tiny", prompt="x", extra_headers={"Authorization": openai.Omit()})  # type: ignore
    await raw.create(model="tiny", prompt="x")
    assert [acquire.tenant for acquire in http.rig.scheduler.acquired] == ["local", "acme"]
