"""When `bench.memory` says that a plan missed: judged on bytes, no worker is started."""

import pytest

from bench import memory


@pytest.mark.parametrize(("used", "code"), [(1000, 0), (1052, 0), (953, 0), (1054, 1), (951, 1)])
def test_a_plan_that_is_further_off_than_five_in_a_hundred_fails(
    used: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = {f"{part}_bytes": 100 for part in memory.PARTS} | {"total_bytes": 1125, "headroom_bytes": 125}
    monkeypatch.setattr(memory, "planned", lambda model, concurrency: plan)
    monkeypatch.setattr(memory, "used", lambda model, concurrency, kv_bytes: used)
    assert memory.main(["mine"]) == code
    assert ("MISSED" in capsys.readouterr().out) == bool(code)
