"""The HTTP door from outside: who gets in, what is refused and how, and what no answer gives away."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog
from starlette.routing import Route

from gateway.core.events import Receipt
from gateway.core.request import Caller
from services.artifacts.chat_template import TemplateRefused
from services.domain.errors import (
    BadRow,
    DependencyDown,
    DuplicateKey,
    ErrorDetail,
    NotYours,
    NoWorker,
    QueueFull,
    ServeError,
)
from services.domain.ids import RequestId, TenantId
from tests.fakes.byte_tokenizer import ByteTemplate
from tests.fakes.http_rig import KEY, MAX_BODY_BYTES, HttpRig, http_rig

ACME = Caller(tenant=TenantId("acme"), key_id="")
LOCAL = Caller(tenant=TenantId("local"), key_id="")
ODD_PATHS = ("/", "/v1", "/v1/models/", "/v1/../v1/models", "//v1/models", "/admin", "/metrics", "/docs",
             "/openapi.json", "/v1/models/%2e%2e", "/V1/MODELS")  # fmt: skip
STRANGERS: tuple[dict[str, str], ...] = (
    {"authorization": "Bearer wrong"},
    {"authorization": "Bearer"},
    {"authorization": "Basic YTpi"},
    {"authorization": KEY},
    {"x-api-key": "wrong"},
    {"x-forwarded-for": "127.0.0.1"},
    {"origin": "http://localhost:3000"},
    {"host": "rebound.example"},
)


@pytest.fixture
async def http() -> AsyncIterator[HttpRig]:
    async with http_rig() as started:
        yield started


def error_of(answer: Any) -> dict[str, Any]:
    """Return the error of an answer, after checking that it has OpenAI's shape and nothing more."""
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) - {"usage"} == {"message", "type", "param", "code"}
    return error


@pytest.mark.failure("B095")
@pytest.mark.parametrize("n", [17, 2**40, 2**64 - 1, -(2**63)])
async def test_no_number_of_choices_costs_anything_before_it_is_refused(http: HttpRig, n: int) -> None:
    for stream in (False, True):
        answer = await http.post(n=n, stream=stream)
        assert (answer.status_code, error_of(answer)["param"]) == (400, "n")


@pytest.mark.failure("B179")
@pytest.mark.parametrize("headers", STRANGERS)
async def test_no_route_is_open_to_a_stranger(http: HttpRig, headers: dict[str, str]) -> None:
    routes = [route for route in http.app.routes if isinstance(route, Route)]
    assert len(routes) == 5
    paths = [route.path.replace("{model:path}", "tiny") for route in routes]
    for path in (*paths, *ODD_PATHS):
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            answer = await http.web.request(method, path, headers=headers)
            assert answer.status_code == 401, (method, path)
            assert error_of(answer)["code"] == "BAD_CREDENTIAL"
    assert http.rig.scheduler.acquired == []


@pytest.mark.parametrize("headers", [{"authorization": f"bearer {KEY}"}, {"x-api-key": KEY}])
async def test_a_valid_key_counts_wherever_the_call_comes_from(
    http: HttpRig, headers: dict[str, str]
) -> None:
    answer = await http.web.get("/v1/models", headers=headers | {"x-forwarded-for": "10.0.0.1"})
    assert answer.status_code == 200


async def test_routes_and_methods_that_do_not_exist_say_so_in_openai_s_words(http: HttpRig) -> None:
    unknown = await http.web.get("/v1/embeddings")
    assert (unknown.status_code, error_of(unknown)["code"]) == (404, "UNKNOWN_ROUTE")
    wrong = await http.web.get("/v1/completions")
    assert (wrong.status_code, error_of(wrong)["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert wrong.headers["allow"] == "POST"
    assert "server" not in wrong.headers


@pytest.mark.failure("B139")
async def test_too_large_a_body_is_refused_before_it_is_read(http: HttpRig) -> None:
    declared = await http.web.post("/v1/completions", content=b" " * (MAX_BODY_BYTES + 1))
    assert (declared.status_code, error_of(declared)["code"]) == (413, "BODY_TOO_LARGE")
    assert error_of(declared)["param"] == "body"
    says = f"body: must be at most {MAX_BODY_BYTES} bytes, got {MAX_BODY_BYTES + 1}"
    assert error_of(declared)["message"] == says

    async def drops() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 4096 + 1):
            yield b" " * 4096

    undeclared = await http.web.post("/v1/completions", content=drops())
    assert undeclared.status_code == 413
    assert "or more" in error_of(undeclared)["message"]
    assert undeclared.headers["connection"] == "close"


@pytest.mark.failure("B139")
@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 10**18, 10**19])
async def test_a_declared_size_is_refused_although_nothing_of_it_comes(http: HttpRig, size: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % size)
    async with asyncio.timeout(60):
        assert (await reader.readline()).split()[1] == b"413"
    writer.close()


async def test_a_body_just_within_the_cap_is_read(http: HttpRig) -> None:
    body = json.dumps({"model": "tiny", "prompt": "x"}).encode()
    answer = await http.web.post("/v1/completions", content=body.ljust(MAX_BODY_BYTES))
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"a":NaN}', b'{"model":"\xff"}', b"[" * 5000, b'"\\ud800"']
)
async def test_a_body_that_is_no_json_object_is_a_bad_request(http: HttpRig, content: bytes) -> None:
    answer = await http.web.post("/v1/chat/completions", content=content)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "body"


async def test_unknown_fields_are_ignored_and_named_and_cannot_write_headers(http: HttpRig) -> None:
    answer = await http.post("/v1/chat/completions", **{
        "store": True, "evil\r\nset-cookie: a=b": 1, "é": 2, "metadata": None,
        "messages": [{"role": "user", "content": "x", "weight": 1}],
        "stream_options": None,
    })  # fmt: skip
    assert answer.status_code == 200
    named = answer.headers["x-quire-ignored-fields"].split(", ")
    assert named == ["evil??set-cookie??a?b", "store", "?", "messages[0].weight"]
    assert "set-cookie" not in answer.headers
    many = await http.post(**{f"field_{number:04}": 1 for number in range(500)})
    assert len(many.headers["x-quire-ignored-fields"]) <= 1030


async def test_the_request_id_is_the_one_that_is_asked_for_later(http: HttpRig) -> None:
    answers = [await http.post(), await http.post(stream=True)]
    http.rig.scheduler.rejects = QueueFull("full")
    answers.append(await http.post("/v1/chat/completions"))
    http.rig.scheduler.rejects = None
    await http.rig.settled()
    for answer in answers:
        request_id = RequestId(answer.headers["x-request-id"])
        ending = await http.rig.parts.queries.request(LOCAL, request_id)
        assert isinstance(ending, Receipt) == (answer.status_code == 200)
    assert answers[0].json()["id"] == f"cmpl-{answers[0].headers['x-request-id']}"
    two = await http.post(prompt=["a", "b"])
    await http.rig.settled()
    for one in two.headers["x-request-id"].split(", "):
        assert isinstance(await http.rig.parts.queries.request(LOCAL, RequestId(one)), Receipt)


@pytest.mark.parametrize("given", ["00-" + "a" * 32 + "-" + "b" * 16 + "-01", "any words", "a" * 9000, ""])
async def test_only_a_real_trace_id_goes_on_to_other_processes(http: HttpRig, given: str) -> None:
    answer = await http.web.post(
        "/v1/completions", json={"model": "tiny", "prompt": "x"}, headers={"traceparent": given}
    )
    assert answer.status_code == 200
    is_real = given.startswith("00-")
    assert http.rig.worker.submits[0].traceparent == (given if is_real else "")
    assert http.rig.scheduler.acquired[0].traceparent == (given if is_real else "")


@pytest.mark.failure("B182")
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (QueueFull("full", ErrorDetail(retry_after_s=0.2)), 429, "rate_limit_error"),
        (NoWorker("none"), 503, "service_unavailable_error"),
        (DependencyDown("down"), 503, "service_unavailable_error"),
        (NotYours("no"), 403, "permission_error"),
        (DuplicateKey("used"), 409, "conflict_error"),
        (BadRow("NaN"), 500, "server_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_kind_of_failure_has_its_status(
    http: HttpRig, error: ServeError, status: int, kind: str, stream: bool
) -> None:
    http.rig.scheduler.rejects = error
    answer = await http.post(stream=stream)
    told = error_of(answer)
    assert (answer.status_code, told["type"], told["code"]) == (status, kind, error.reason)
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    assert answer.headers["x-request-id"]


@pytest.mark.failure("B182")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_of_ours_is_a_correlation_id_and_nothing_else(
    http: HttpRig, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the secret of /etc/quire")

    monkeypatch.setattr(http.rig.quota, "reserve", fail)
    with structlog.testing.capture_logs() as logged:
        answer = await http.post(stream=stream)
    told = error_of(answer)
    assert (answer.status_code, told["type"]) == (500, "server_error")
    assert told["message"].startswith("internal error, correlation id ")
    assert told["message"].endswith(
        next(line for line in logged if "correlation_id" in line)["correlation_id"]
    )
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.failure("B100")
@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "wizard", "content": "x"}], "messages[0].role"),
        ([], "messages"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0]"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}], "messages[0].tool_calls"),
    ],
)
async def test_a_conversation_that_is_refused_is_the_caller_s_error(
    http: HttpRig, messages: list[Any], param: str
) -> None:
    answer = await http.post("/v1/chat/completions", messages=messages)
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)


@pytest.mark.failure("B100")
@pytest.mark.parametrize("stream", [False, True])
async def test_the_template_s_own_words_reach_the_caller(
    http: HttpRig, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    def encode(self: ByteTemplate, messages: Any, **options: Any) -> list[int]:
        raise TemplateRefused("messages", "system role is not supported")

    monkeypatch.setattr(ByteTemplate, "encode", encode)
    answer = await http.post("/v1/chat/completions", stream=stream)
    told = error_of(answer)
    assert (answer.status_code, told["code"], told["param"]) == (400, "TEMPLATE_REFUSED", "messages")
    assert told["message"] == "messages: system role is not supported"


@pytest.mark.failure("B098")
async def test_an_empty_prompt_is_refused_and_its_companions_are_unharmed(http: HttpRig) -> None:
    for prompt in ("", [], [""], [[]], ["good", ""], [[1], []]):
        for more in ({}, {"max_tokens": 0}):
            answer = await http.post(prompt=prompt, **more)
            assert answer.status_code == 400, prompt
            assert error_of(answer)["param"].startswith(("prompt", "max_tokens"))
    assert (await http.post(max_tokens=0)).status_code == 400
    assert (await http.post()).json()["choices"][0]["text"] == "hello world"
    await http.rig.settled()
    assert http.rig.worker.running == {}


@pytest.mark.failure("B091")
@pytest.mark.parametrize("bad", [-1, 260, 2**31, 2**63, 10**19, "abc", 1.5, True, None])
async def test_ids_out_of_the_vocabulary_are_refused_by_name(http: HttpRig, bad: Any) -> None:
    fields: dict[str, Any] = {"prompt": [1, bad], "stop_token_ids": [bad], "logit_bias": {str(bad): 1}}
    for name, value in fields.items():
        answer = await http.post(**{name: value})
        assert answer.status_code == 400, (name, value)
        assert error_of(answer)["param"].startswith(name)
    assert (await http.post(logit_bias={"9" * 5000: 1})).status_code == 400
    assert http.rig.scheduler.acquired == []


@pytest.mark.failure("B072")
@pytest.mark.parametrize(
    ("stop", "status"),
    [("", 400), ([], 200), ([""], 400), (["a", ""], 400), (None, 200), (["a"] * 5, 200), (["a"] * 17, 400),
     ("x" * 10_000, 400), ([1], 400), ({}, 400)],
)  # fmt: skip
async def test_stop_entries_follow_one_rule(http: HttpRig, stop: Any, status: int) -> None:
    assert (await http.post(stop=stop)).status_code == status
