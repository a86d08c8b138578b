"""Tenants and keys over real gRPC and a real Valkey: the command, the door, every gateway at once."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from google.protobuf import message_factory

from protos.admin.v1 import admin_pb2 as pb
from services.chassis.errors import from_rpc_error
from services.domain.errors import BadCredential, InvalidField, NotYours, ServeError, StaleChange
from services.rpc.tenant_admin import TenantAdminClient
from tests.fakes.admin_rig import AdminRig, admin_rig
from tests.fakes.gateway_rig import ADMIN_KEY, Rig, generate
from tests.fakes.valkey import Valkey, eventually

LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d [\d:]+ \[")
SERVICE = pb.DESCRIPTOR.services_by_name["AdminService"]


@pytest.fixture
async def admin(valkey: Valkey) -> AsyncIterator[AdminRig]:
    async with admin_rig(valkey.url) as started:
        yield started


async def refusal(rig: Rig, key: str, **fields: Any) -> ServeError | None:
    """Return how a generation with a key is refused, None when it is served."""
    try:
        await generate(rig, metadata=(("authorization", f"Bearer {key}"),), **fields)
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    return None


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command printed, without what the gateways in this process logged meanwhile."""
    lines = capsys.readouterr().out.splitlines(keepends=True)
    return "".join(line for line in lines if not LOG_LINE.match(line))


def last_json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(printed(capsys).splitlines()[-1])


@pytest.mark.failure("B179")
@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ((), BadCredential),
        ((("authorization", "Bearer wrong"),), BadCredential),
        ((("authorization", "Bearer acme-key"),), NotYours),
        ((("x-api-key", ADMIN_KEY + " "),), BadCredential),
    ],
)
async def test_no_method_opens_without_an_admins_key(
    admin: AdminRig, metadata: tuple[tuple[str, str], ...], error: type[ServeError]
) -> None:
    assert len(SERVICE.methods) > 10
    for method in SERVICE.methods:
        request = message_factory.GetMessageClass(method.input_type)()
        answer = message_factory.GetMessageClass(method.output_type)
        call = admin.channel.unary_unary(
            f"/{SERVICE.full_name}/{method.name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(request, metadata=metadata)
        assert type(from_rpc_error(caught.value)) is error, method.name
    assert admin.rig.parts.admin.feed.directory.version == 0


async def test_an_edit_is_effective_in_every_gateway(
    valkey: Valkey, admin: AdminRig, capsys: pytest.CaptureFixture[str]
) -> None:
    async with admin_rig(valkey.url) as other:
        assert await admin.quire("create", "team", "parent=acme", "max_output_tokens=20") == 0
        assert await admin.quire("keys", "create", "team", "--label", "ci", "--json") == 0
        made = last_json(capsys)
        secret, key_id = made["secret"], made["key"]["id"]
        assert await refusal(admin.rig, secret) is None

        async def is_known() -> bool:
            return await refusal(other.rig, secret) is None

        async def is_gone() -> bool:
            return isinstance(await refusal(other.rig, secret), BadCredential)

        async def may_ask_for(tokens: int) -> bool:
            return await refusal(other.rig, secret, max_output_tokens=tokens) is None

        await eventually(is_known)
        assert not await may_ask_for(30)
        assert await other.quire("set", "team", "max_output_tokens=30") == 0
        assert await may_ask_for(30)  # The gateway that made the change has it at once.
        assert await admin.quire("keys", "revoke", key_id) == 0
        assert isinstance(await refusal(admin.rig, secret), BadCredential)
        await eventually(is_gone)


async def test_a_file_is_applied_with_a_diff_once_and_exported_again(
    admin: AdminRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tenants.yaml"
    documents = [
        {"id": "child", "parent": "org", "weight": 2.0, "aliases": {"fast": "tiny"}},
        {
            "id": "org",
            "tokens_per_minute": {"per_minute": 5000, "burst": 100},
            "daily": {"tokens": 9000, "hard": False},
            "prices": {"currency": "EUR", "output_per_million": 2.5},
        },
    ]
    file.write_text(yaml.safe_dump({"tenants": documents}))
    assert await admin.quire("apply", "-f", str(file), "--dry-run") == 0
    shown = printed(capsys)
    assert "+ tenant child\n" in shown
    assert '    tokens_per_minute: default -> {"burst":100,"per_minute":5000}\n' in shown
    assert "2 would change" in shown
    assert await admin.quire("show", "org") == 1
    capsys.readouterr()
    assert await admin.quire("apply", "-f", str(file)) == 0
    assert "2 changed" in printed(capsys)
    assert await admin.quire("apply", "-f", str(file)) == 0
    assert printed(capsys) == "all is as declared\n"
    assert await admin.quire("export") == 0
    exported = yaml.safe_load(printed(capsys))["tenants"]
    assert sorted(exported, key=lambda one: str(one["id"])) == documents
    file.write_text(yaml.safe_dump({"tenants": documents[1:]}))
    assert await admin.quire("apply", "-f", str(file), "--delete-missing") == 0
    assert "- tenant child\n1 changed\n" in printed(capsys)


async def test_what_is_refused_names_field_rule_and_nearest_value(
    admin: AdminRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await admin.quire("create", "team")
    file = tmp_path / "tenants.yaml"
    file.write_text("tenants: [{id: team, daily: {tokens: -5}}]")
    lines = []
    for words in (
        ("set", "team", "max_concurrency=0"),
        ("set", "team", "max_concurency=3"),
        ("set", "team", "band=bacth"),
        ("set", "team", "kv_pages_guaranteed=3"),
        ("create", "other", "parent=taem"),
        ("apply", "-f", str(file)),
        ("show", "taem"),
        ("keys", "revoke", "nothing"),
        ("set", "team", "degradation={smaller_models: {tiny: tinny}}"),
    ):
        capsys.readouterr()
        assert await admin.quire(*words) != 0, words
        lines.append(capsys.readouterr().err)
    assert "max_concurrency: must be a whole number from 1" in lines[0]
    assert "nearest valid: 1" in lines[0]
    assert "did you mean max_concurrency?" in lines[1]
    assert "nearest valid: batch" in lines[2]
    assert "not yet supported" in lines[3]
    assert "parent: must be a known tenant" in lines[4]
    assert "nearest valid: team" in lines[4]
    assert "tenants[team].daily.tokens" in lines[5]
    assert "nearest known: team" in lines[6]
    assert "there is no key" in lines[7]
    assert "team.degradation.smaller_models.tiny: must be a model that is known here, or an alias" in lines[8]
    assert "nearest valid: tiny" in lines[8]
    assert all(line.count("\n") == 1 for line in lines)
    assert await admin.quire("show", key="no admin's key at all") == 1
    assert "an admin key is needed" in capsys.readouterr().err


async def test_the_door_refuses_what_a_foreign_client_may_send(admin: AdminRig) -> None:
    client = TenantAdminClient(admin.channel, ADMIN_KEY)
    with pytest.raises(InvalidField, match=r"daily\.tokens: .*nearest valid: 1") as caught:
        await client.create({"id": "team", "daily": {"tokens": -1}})
    assert caught.value.detail.field == "daily.tokens"
    assert caught.value.detail.metadata["nearest"] == "1"
    made = await client.create({"id": "team", "band": "batch"})
    assert made.document == {"id": "team", "band": "batch"}
    with pytest.raises(StaleChange):
        await client.update({"id": "team", "weight": 2}, ["weight"], etag="old")
    changed = await client.update({"id": "team", "weight": 2}, ["weight"], etag=made.etag)
    assert changed.document == {"id": "team", "band": "batch", "weight": 2}
    for token in ("x", "-1", "²", "٣", "9" * 30):
        with pytest.raises(InvalidField, match="page_token"):
            await admin_call(admin, "ListChanges", pb.ListChangesRequest(page_token=token))
    with pytest.raises(InvalidField, match=r"page_size: .*nearest valid: 1000"):
        await admin_call(admin, "ListTenants", pb.ListTenantsRequest(page_size=5000))
    with pytest.raises(InvalidField, match="scopes"):
        await admin_call(admin, "CreateKey", pb.CreateKeyRequest(tenant="team", scopes=[77]))  # type: ignore[list-item]


async def test_pages_follow_each_other_to_the_end(admin: AdminRig) -> None:
    client = TenantAdminClient(admin.channel, ADMIN_KEY)
    await client.apply([{"id": f"t{n}"} for n in range(5)], delete_missing=False)
    names, token = [], ""
    while True:
        page = await admin_call(admin, "ListTenants", pb.ListTenantsRequest(page_size=2, page_token=token))
        names += [record.tenant.id for record in page.records]
        token = page.next_page_token
        if not token:
            break
    assert names == ["acme", "local", "t0", "t1", "t2", "t3", "t4"]
    page = await admin_call(admin, "ListChanges", pb.ListChangesRequest(page_size=3))
    last = await admin_call(
        admin, "ListChanges", pb.ListChangesRequest(page_size=3, page_token=page.next_page_token)
    )
    assert [change.version for change in (*page.changes, *last.changes)] == [5, 4, 3, 2, 1]


async def test_keys_rotate_with_an_overlap_and_the_audit_knows_everything_but_them(
    admin: AdminRig, capsys: pytest.CaptureFixture[str]
) -> None:
    await admin.quire("create", "team")
    capsys.readouterr()
    await admin.quire("keys", "create", "team", "--limit", "max_concurrency=1", "--days", "2", "--json")
    old = last_json(capsys)
    await admin.quire("keys", "rotate", old["key"]["id"], "--overlap-s", "60", "--json")
    new = last_json(capsys)
    assert new["old"]["expires_at"] < old["key"]["expires_at"]
    assert new["key"]["limits"] == {"max_concurrency": 1}
    assert await refusal(admin.rig, old["secret"]) is None
    assert await refusal(admin.rig, new["secret"]) is None
    assert await refusal(admin.rig, new["secret"], n=2) is not None  # The key's own limit went along.
    feed = admin.rig.parts.admin
    await feed.log.note_use(admin.rig.parts.auth.take_used())
    capsys.readouterr()
    await admin.quire("keys", "list", "team", "--json")
    listed = [json.loads(line) for line in printed(capsys).splitlines()]
    assert len(listed) == 2
    assert all(one["last_used"] is not None for one in listed)
    await admin.quire("keys", "rotate", new["key"]["id"], "--overlap-s", "0", "--json")
    assert isinstance(await refusal(admin.rig, new["secret"]), BadCredential)
    capsys.readouterr()
    await admin.quire("audit", "team", "--json")
    output = printed(capsys)
    entries = [json.loads(line) for line in output.splitlines()]
    assert [entry["version"] for entry in entries] == [6, 5, 4, 3, 2, 1]
    assert entries[-1]["before"] is None
    assert entries[-1]["after"] == {"id": "team"}
    assert all(entry["who"].startswith("local/") and entry["at"] > 0 for entry in entries)
    assert old["secret"] not in output
    assert "digest" not in output
    await admin.quire("audit")
    assert "+ key" in printed(capsys)


async def test_without_redis_known_tenants_are_served_and_changes_refused(
    valkey: Valkey, admin: AdminRig, capsys: pytest.CaptureFixture[str]
) -> None:
    await admin.quire("create", "team")
    capsys.readouterr()
    await admin.quire("keys", "create", "team", "--json")
    secret = last_json(capsys)["secret"]
    await valkey.stop()
    assert await admin.quire("set", "team", "weight=2") == 1
    assert "DEPENDENCY_DOWN" in capsys.readouterr().err
    assert await refusal(admin.rig, secret) is None
    await valkey.start()  # Empty.

    async def is_up() -> bool:
        return await admin.quire("show", "team") == 0

    await eventually(is_up)
    assert await refusal(admin.rig, secret) is None


async def admin_call(admin: AdminRig, name: str, request: Any) -> Any:
    method = SERVICE.methods_by_name[name]
    call = admin.channel.unary_unary(
        f"/{SERVICE.full_name}/{name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    try:
        return await call(request, metadata=(("authorization", f"Bearer {ADMIN_KEY}"),))
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
