"""What a tenant used and what it cost: on receipts, by command and by API, and to nobody else."""

import csv
import datetime
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from gateway.stores.quota_redis import RedisQuota
from protos.gateway.v1 import gateway_pb2 as pb
from protos.types.v1 import types_pb2
from services.chassis.errors import from_rpc_error
from services.chassis.redis import connect
from services.domain.errors import InvalidField, NotYours, UnknownModel
from services.rpc.tenant_admin import TenantAdminClient
from tests.fakes.admin_rig import AdminRig, admin_rig
from tests.fakes.gateway_rig import ACME_KEY, ADMIN_KEY, generate
from tests.fakes.http_rig import app_of
from tests.fakes.valkey import Valkey
from tests.integration.test_tenant_admin import last_json, printed

_DAY = datetime.timedelta(days=1)
_NOW = datetime.datetime.now(datetime.UTC).date()
PERIOD = f"{_NOW - _DAY}..{_NOW + _DAY}"
"""Holds all that is counted here, also when a day or a month ends meanwhile."""
DAYS = ("--period", PERIOD)
PRICES = (
    "prices={currency: EUR, uncached_per_million: 0.1, cached_per_million: 0.05,"
    " output_per_million: 0.7, page_hour: 3.6}"
)


@pytest.fixture
async def admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AdminRig]:
    # A starved machine is no outage.
    monkeypatch.setattr("gateway.stores.tenants.LIMIT_S", 20.0)
    monkeypatch.setattr("gateway.stores.quota_redis.BACKGROUND_LIMIT_S", 20.0)
    valkey = Valkey(tmp_path)
    await valkey.start()
    redis = connect(valkey.url, limit_s=20.0)
    async with admin_rig(valkey.url, quota=RedisQuota(redis)) as started:
        yield started
    await redis.close()
    await valkey.stop()


async def make_key(admin: AdminRig, capsys: Any, *words: str) -> tuple[Any, str]:
    """Make a key; return it as gRPC metadata, and its id."""
    printed(capsys)
    assert await admin.quire("keys", "create", *words, "--json") == 0
    made = last_json(capsys)
    return (("authorization", f"Bearer {made['secret']}"),), made["key"]["id"]


def nanos_of(receipt: pb.Receipt) -> int:
    """Return what a receipt must cost under `PRICES`, by whole numbers alone."""
    usage = receipt.usage
    tokens = (
        100 * (usage.prompt_tokens - usage.cached_tokens)
        + 50 * usage.cached_tokens
        + 700 * usage.output_tokens
    )
    return tokens + round(receipt.page_seconds * 1000) * 1000


async def test_reports_are_the_sum_of_receipts_by_command_and_by_api(
    admin: AdminRig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await admin.quire("create", "org", PRICES) == 0
    assert await admin.quire("create", "team", "parent=org", "aliases={mine: tiny}") == 0
    one, one_id = await make_key(admin, capsys, "team")
    two, two_id = await make_key(admin, capsys, "team")
    receipts = [(await generate(admin.rig, metadata=key)).receipt for key in (one, one, two)]
    receipts.append((await generate(admin.rig, metadata=two, model="mine")).receipt)
    await admin.rig.settled()
    costs = [one.cost_nanos for one in receipts]
    assert costs == [nanos_of(one) for one in receipts]
    assert all(costs)

    printed(capsys)
    assert await admin.quire("usage", "org", "--by", "key", "--by", "model", "--json", *DAYS) == 0
    rows = [json.loads(line) for line in printed(capsys).splitlines()]
    assert {(row["key"], row["model"], row["requests"], row["currency"]) for row in rows} == {
        (one_id, "tiny", 2, "EUR"),
        (two_id, "tiny", 2, "EUR"),
    }
    by_key = {row["key"]: float(row["cost"]) for row in rows}
    assert by_key[one_id] == pytest.approx(sum(costs[:2]) / 1e9, rel=1e-12)
    assert await admin.quire("usage", "team", "--by", "tenant", "--csv", *DAYS) == 0
    (row,) = csv.DictReader(io.StringIO(printed(capsys)))
    assert (row["tenant"], row["requests"]) == ("team", "4")
    assert int(row["output"]) == sum(one.usage.output_tokens for one in receipts)
    assert await admin.quire("usage", "org", *DAYS) == 0
    assert printed(capsys).splitlines()[-1].split()[0] == "4"

    answer = await admin.rig.stub.GetUsage(
        pb.GetUsageRequest(period=PERIOD, by=[types_pb2.USAGE_SPLIT_KEY]), metadata=one
    )
    assert {row.key: row.cost_nanos for row in answer.report.rows} == {
        one_id: sum(costs[:2]),
        two_id: sum(costs[2:]),
    }


async def test_what_deleted_tenants_used_can_still_be_charged(
    admin: AdminRig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await admin.quire("create", "org", PRICES) == 0
    assert await admin.quire("create", "team", "parent=org") == 0
    key, _ = await make_key(admin, capsys, "team")
    await generate(admin.rig, metadata=key)
    await admin.rig.settled()

    async def used(tenant: str) -> list[tuple[str, int, str]]:
        printed(capsys)
        assert await admin.quire("usage", tenant, "--by", "tenant", "--json", *DAYS) == 0
        rows = [json.loads(line) for line in printed(capsys).splitlines()]
        return [(row["tenant"], row["requests"], row["currency"]) for row in rows]

    wanted = [("team", 1, "EUR")]
    assert await used("org") == wanted
    client = TenantAdminClient(admin.channel, ADMIN_KEY)
    await client.delete("team")
    assert (await used("org"), await used("team")) == (wanted, wanted)
    await client.delete("org")
    assert await used("org") == wanted
    assert [row[:2] for row in await used("team")] == [("team", 1)]
    assert await admin.quire("usage", "never", *DAYS) == 1


async def test_own_usage_needs_its_scope_and_is_nobody_elses(
    admin: AdminRig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await admin.quire("create", "org") == 0
    assert await admin.quire("create", "team", "parent=org") == 0
    generating, _ = await make_key(admin, capsys, "team", "--scope", "generate")
    reading, _ = await make_key(admin, capsys, "team", "--scope", "usage")
    above, _ = await make_key(admin, capsys, "org", "--scope", "usage")
    await generate(admin.rig, metadata=generating)
    await admin.rig.settled()

    async def requests_by(metadata: Any) -> int:
        answer = await admin.rig.stub.GetUsage(pb.GetUsageRequest(period=PERIOD), metadata=metadata)
        return int(answer.report.rows[0].requests)

    assert [await requests_by(one) for one in (reading, above, ACME_KEY)] == [1, 0, 0]
    for key, call in (
        (generating, admin.rig.stub.GetUsage(pb.GetUsageRequest(), metadata=generating)),
        (reading, admin.rig.stub.ListModels(pb.ListModelsRequest(), metadata=reading)),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert type(from_rpc_error(caught.value)) is NotYours, key
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await admin.rig.stub.GetUsage(pb.GetUsageRequest(period="week"), metadata=reading)
    error = from_rpc_error(caught.value)
    assert type(error) is InvalidField
    assert error.detail.field == "period"


async def test_usage_and_models_over_http_are_the_callers_own(
    admin: AdminRig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await admin.quire("create", "team", PRICES, "models=[tiny]", "aliases={mine: tiny}") == 0
    assert await admin.quire("create", "barred", "models=[another]") == 0
    team, key_id = await make_key(admin, capsys, "team")
    barred, _ = await make_key(admin, capsys, "barred")
    transport = httpx.ASGITransport(app_of(admin.rig.parts), client=("10.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://door") as web:
        body = {"model": "mine", "prompt": "hello"}
        answer = await web.post("/v1/completions", json=body, headers=dict(team))
        assert answer.status_code == 200
        await admin.rig.settled()
        usage = await web.get(f"/v1/usage?by=key,model&period={PERIOD}", headers=dict(team))
        (row,) = usage.json()["data"]
        assert (row["key"], row["model"], row["requests"]) == (key_id, "tiny", 1)
        assert row["cost_nanos"] == answer.json()["usage"]["cost_nanos"] > 0
        assert usage.json()["currency"] == "EUR"
        assert (await web.get("/v1/usage?by=week", headers=dict(team))).json()["error"]["param"] == "by"
        assert (await web.get("/v1/usage")).status_code == 401
        assert (await web.get("/v1/usage", headers=dict(barred))).json()["data"][0]["requests"] == 0
        models = {
            name: [one["id"] for one in (await web.get("/v1/models", headers=dict(key))).json()["data"]]
            for name, key in (("team", team), ("barred", barred))
        }
        assert models == {"team": ["mine", "tiny"], "barred": []}
        assert (await web.get("/v1/models/mine", headers=dict(team))).status_code == 200
        assert (await web.get("/v1/models/tiny", headers=dict(barred))).status_code == 404


async def test_tokenize_and_list_models_follow_the_models_that_a_tenant_may_call(
    admin: AdminRig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await admin.quire("create", "team", "models=[tiny]", "aliases={mine: tiny}") == 0
    assert await admin.quire("create", "barred", "models=[another]") == 0
    team, _ = await make_key(admin, capsys, "team")
    barred, _ = await make_key(admin, capsys, "barred")
    stub = admin.rig.stub
    listed = [
        [one.name for one in (await stub.ListModels(pb.ListModelsRequest(), metadata=key)).models]
        for key in (team, barred, ACME_KEY)
    ]
    assert listed == [["mine", "tiny"], [], ["tiny"]]
    tokens = await stub.Tokenize(pb.TokenizeRequest(model="mine", text="hello"), metadata=team)
    assert len(tokens.ids) > 0
    for key, error in ((barred, NotYours), (ACME_KEY, UnknownModel)):
        model = "tiny" if error is NotYours else "mine"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Tokenize(pb.TokenizeRequest(model=model, text="hello"), metadata=key)
        assert type(from_rpc_error(caught.value)) is error
