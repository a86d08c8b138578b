"""Limits of classes and models are told by answers that reserve nothing, at both doors."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from gateway.core.limit_status import OTHERS_HEADER
from protos.gateway.v1 import gateway_pb2 as pb
from services.domain.ids import TenantId
from services.domain.limits import Limits, Rate
from services.domain.tenant_book import TenantBook
from tests.fakes.gateway_rig import ACME, ACME_KEY, a_request
from tests.fakes.http_rig import KEY, HttpRig, http_rig

SHORT, LONG, TINY, BIG = (Limits(tokens_per_minute=Rate(per_minute=most)) for most in (100, 200, 300, 400))
LIMITED = replace(
    ACME,
    limits=Limits(),
    long_from_tokens=8,
    short_class=SHORT,
    long_class=LONG,
    model_limits={"tiny": TINY, "big": BIG},
)
CLASSES = "class/acme/short tokens 100/100; class/acme/long tokens 200/200"
MODELS = "model/acme/tiny tokens 300/300; model/acme/big tokens 400/400"


@pytest.fixture
async def http(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpRig]:
    async with http_rig() as started:
        directory = started.rig.parts.admin.feed.directory
        monkeypatch.setattr(directory, "book", directory.book.replaced({LIMITED.id: LIMITED}))
        started.web.headers["authorization"] = f"Bearer {KEY}"
        yield started


def told(pairs: Any) -> tuple[str | None, str | None]:
    """Return most tokens of what holds, and what is said of the others."""
    found = dict(pairs)
    return found.get("x-ratelimit-limit-tokens"), found.get(OTHERS_HEADER)


async def test_what_concerns_no_model_tells_of_each_apart(http: HttpRig) -> None:
    assert isinstance(http.rig.parts.admin.feed.directory.book, TenantBook)
    for path in ("/v1/models", "/v1/usage", "/v1/nothing"):
        answer = await http.web.get(path)
        assert told(answer.headers.items()) == (None, f"{CLASSES}; {MODELS}"), path
    call = http.rig.stub.ListModels(pb.ListModelsRequest(), metadata=ACME_KEY)
    await call
    assert told(await call.trailing_metadata()) == (None, f"{CLASSES}; {MODELS}")


async def test_what_concerns_a_model_counts_it_and_tells_of_the_classes_apart(http: HttpRig) -> None:
    answer = await http.web.get("/v1/models/tiny")
    assert (answer.status_code, told(answer.headers.items())) == (200, ("300", CLASSES))
    answer = await http.web.post("/v1/completions", json={"model": "tiny", "prompt": "hello", "top_p": 7})
    assert (answer.status_code, told(answer.headers.items())) == (400, ("300", CLASSES))
    refused = http.rig.stub.Generate(a_request(max_output_tokens=10**9), metadata=ACME_KEY)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await refused.read()
    assert told(caught.value.trailing_metadata() or ()) == ("300", CLASSES)


@pytest.mark.parametrize(("text", "most"), [("short", "100"), ("longer than eight", "200")])
async def test_what_read_the_prompt_knows_its_class_too(http: HttpRig, text: str, most: str) -> None:
    call = http.rig.stub.Tokenize(pb.TokenizeRequest(model="tiny", text=text), metadata=ACME_KEY)
    await call
    assert told(await call.trailing_metadata()) == (most, None)
    answer = await http.post(max_tokens=1, prompt=text)
    assert told(answer.headers.items()) == (most, None), "as a generation with this prompt says"


async def test_models_that_it_may_not_call_are_not_named(
    http: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = http.rig.parts.admin.feed.directory
    limits = {"big": BIG, "mine": TINY, "tiny": TINY}
    owner = replace(LIMITED, id=TenantId("owner"), model_limits=limits)
    team = replace(ACME, parent=owner.id, limits=Limits(), models=("tiny",), aliases={"mine": "tiny"})
    book = directory.book.replaced({owner.id: owner, team.id: team})
    monkeypatch.setattr(directory, "book", book)
    _, others = told((await http.web.get("/v1/models")).headers.items())
    names = [part.split(" ")[0] for part in (others or "").split("; ")]
    assert names == ["class/owner/short", "class/owner/long", "model/owner/mine", "model/owner/tiny"]


async def test_another_name_is_no_way_around_a_models_limits(
    http: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = http.rig.parts.admin.feed.directory
    few = Limits(tokens_per_minute=Rate(per_minute=1))
    limited = replace(ACME, limits=Limits(), aliases={"mine": "tiny"}, model_limits={"tiny": few})
    monkeypatch.setattr(directory, "book", directory.book.replaced({ACME.id: limited}))
    for name in ("tiny", "mine"):
        answer = await http.post(model=name, prompt="hello", max_tokens=1)
        assert answer.status_code == 429, name
        assert answer.json()["error"]["message"].startswith("model/acme/tiny: "), name


async def test_without_such_limits_nothing_is_said_of_them(
    http: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = http.rig.parts.admin.feed.directory
    monkeypatch.setattr(directory, "book", directory.book.replaced({ACME.id: ACME}))
    answer = await http.web.get("/v1/models")
    assert told(answer.headers.items()) == ("1000000", None)
