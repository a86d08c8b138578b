"""A replica that takes over without the last second: a key revoked in it opens nothing, there or anywhere."""

from pathlib import Path

import pytest

from services.chassis.redis import connect
from services.domain.errors import BadCredential
from tests.fakes.admin_rig import AdminRig, admin_rig
from tests.fakes.valkey import Valkey, eventually
from tests.integration.test_tenant_admin import last_json, refusal
from tests.unit.chassis.test_chassis_redis import Proxy


async def opens(gateway: AdminRig, secret: str) -> bool:
    refused = await refusal(gateway.rig, secret)
    assert refused is None or isinstance(refused, BadCredential)
    return refused is None


async def test_a_key_revoked_in_the_second_that_was_lost_stays_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    old, new = map(Valkey, folders)
    await old.start()
    await new.start()
    primary = connect(old.url, limit_s=20.0)
    async with Proxy(old.port).running() as proxy, admin_rig(f"redis://127.0.0.1:{proxy.port}/0") as saw:
        assert await saw.quire("create", "team") == 0
        assert await saw.quire("keys", "create", "team", "--json") == 0
        made = last_json(capsys)
        assert await opens(saw, made["secret"])
        # What the replica has when it takes over.
        names = await primary.execute("KEYS", "*")
        copied = ("COPY", "REPLACE", "KEYS", *names)
        assert await primary.execute("MIGRATE", "127.0.0.1", new.port, "", 0, 20_000, *copied) == b"OK"
        assert await saw.quire("keys", "revoke", made["key"]["id"]) == 0
        assert not await opens(saw, made["secret"])
        async with admin_rig(new.url) as started_later:
            assert await opens(started_later, made["secret"]), "the control: nobody told the replica"
            proxy.move_to(new.port)

            async def is_closed() -> bool:
                assert not await opens(saw, made["secret"]), "not even for a moment"
                return not await opens(started_later, made["secret"])

            await eventually(is_closed)
            capsys.readouterr()
            assert await started_later.quire("audit", "team", "--json") == 0
            assert '"who":"gateway"' in capsys.readouterr().out.replace(" ", "")
    await primary.close()
    await old.stop()
    await new.stop()
