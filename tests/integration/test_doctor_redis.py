"""`quire doctor` asks a real Redis."""

from services.commands.doctor_facts import ask_redis


async def test_a_redis_that_answers_tells_version_policy_and_clock(valkey_url: str) -> None:
    found = await ask_redis(valkey_url)
    assert found.error is None
    assert found.version
    assert found.policy == "noeviction"
    assert found.clock_ahead_s is not None
