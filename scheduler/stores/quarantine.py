"""Quarantined prompts kept beyond the scheduler's life: by digest, each until its time is up.

Knows digests and for how much longer they are kept from workers; no prompt, no worker and not when to write.
"""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from services.chassis.redis import RedisStore, Script

KEY = "quire:quarantine"
"""ZSET: digest -> end of its quarantine, in milliseconds of Redis' clock."""
LIMIT_S = 1.0
"""Limit of a call; nobody waits for one but the scheduler's start, once."""
MOST = 1024
"""Digests kept; those that end first go first."""

_SCRIPT = Script(
    f"""
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
for index = 2, #ARGV, 2 do
  if ARGV[1] == 'keep' then
    redis.call('ZADD', KEYS[1], now + tonumber(ARGV[index + 1]), ARGV[index])
  else
    redis.call('ZREM', KEYS[1], ARGV[index])
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -{MOST + 1})
local held = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
if #held > 0 then
  redis.call('PEXPIRE', KEYS[1], math.max(1, tonumber(held[#held]) - now))
end
for index = 2, #held, 2 do
  held[index] = math.floor(tonumber(held[index]) - now)
end
return held
"""
)


class QuarantineStore(Protocol):
    """Every implementation passes the same contract suite. Calls raise DependencyDown while it is silent."""

    async def load(self) -> Mapping[bytes, float]:
        """Return the digests that are kept from workers, with the seconds that are left."""

    async def keep(self, held: Mapping[bytes, float]) -> None:
        """Keep digests for so many seconds from now, whatever was said of them before."""

    async def forget(self, digests: Collection[bytes]) -> None:
        """Forget digests; one that is not there changes nothing."""


class RedisQuarantine:
    """See `QuarantineStore`."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def load(self) -> Mapping[bytes, float]:
        found = await self._run("keep")
        return {digest: left_ms / 1000 for digest, left_ms in zip(found[::2], found[1::2], strict=True)}

    async def keep(self, held: Mapping[bytes, float]) -> None:
        ends = [(digest, max(1, round(left_s * 1000))) for digest, left_s in held.items()]
        await self._run("keep", *(word for one in ends for word in one))

    async def forget(self, digests: Collection[bytes]) -> None:
        await self._run("forget", *(word for digest in digests for word in (digest, 0)))

    async def _run(self, *words: bytes | str | int) -> list[Any]:
        found: list[Any] = await self._redis.run_script(_SCRIPT, [KEY], words, limit_s=LIMIT_S)
        return found
