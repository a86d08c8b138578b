"""Quotas in a real Valkey behind TLS, with certificates of `quire certs`: another authority's get nobody in.

The Valkey that tests have is built without TLS; what ends it stands before the server.
"""

import asyncio
from pathlib import Path

import pytest

from gateway.stores.quota_redis import RedisQuota
from services.chassis.redis import connect
from services.chassis.redis_trouble import what_to_mend
from services.chassis.tls import Tls
from services.domain.errors import DependencyDown, QuotaExceeded
from services.domain.limits import Limits
from tests.fakes.certificates import files, make_certs
from tests.fakes.quota_values import a_reservation, a_settlement, an_account, use_of
from tests.fakes.tls_front import tls_front


async def test_requests_are_reserved_and_settled_over_tls_and_another_authority_is_refused(
    tmp_path: Path, valkey_url: str
) -> None:
    folder, other = make_certs(tmp_path / "certs"), make_certs(tmp_path / "other")
    account = an_account(Limits(max_concurrency=4))
    async with tls_front(folder, "redis", int(valkey_url.split(":")[2][:-2])) as port:
        url = f"rediss://127.0.0.1:{port}/0"
        ours = connect(url, limit_s=30.0, tls=Tls(files(folder, "gateway")))
        theirs = connect(url, limit_s=30.0, tls=Tls(files(other, "gateway")))
        store = RedisQuota(ours)
        outcomes = await asyncio.gather(
            *(store.reserve(a_reservation(account, n)) for n in range(8)), return_exceptions=True
        )
        assert [type(one) for one in outcomes].count(QuotaExceeded) == 4
        with pytest.raises(DependencyDown) as caught:
            await RedisQuota(theirs).reserve(a_reservation(account, "stranger"))
        assert "a certificate that is not trusted" in what_to_mend(caught.value)
        plain = connect(valkey_url, limit_s=30.0)
        assert (await use_of(RedisQuota(plain), account)).num_leases == 4, "all of it reached the one server"
        await store.settle([a_settlement(account, n) for n in range(8)])
        assert (await use_of(RedisQuota(plain), account)).num_leases == 0
        await asyncio.gather(*(one.close() for one in (ours, theirs, plain)))
