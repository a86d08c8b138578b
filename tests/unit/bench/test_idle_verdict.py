"""When `bench.idle` says that an idle suite takes too much: judged on figures, no suite is started."""

from typing import Any

import pytest

from bench import idle

PROCESSES = ("launcher", "redis", "gateway", "scheduler", "kvmanager", "worker-0")
CPU_PERCENT = 1.9 / len(PROCESSES)
PSS_MB = 99.0


@pytest.mark.parametrize(
    ("answered", "process", "change", "code"),
    [
        (1000, "gateway", {}, 0),
        (999, "gateway", {}, 1),
        # Whichever process it is that works, all have one bound.
        *[(1000, name, {"cpu_percent": CPU_PERCENT + 0.2}, 1) for name in PROCESSES],
        *[(1000, name, {"pss_mb": PSS_MB + 4.0}, 1) for name in ("gateway", "scheduler", "kvmanager")],
        *[(1000, name, {"pss_mb": 2000.0}, 0) for name in ("launcher", "redis", "worker-0")],
    ],
)
def test_a_suite_that_takes_more_than_it_may_fails(
    answered: int, process: str, change: dict[str, float], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {
        name: {"cpu_percent": CPU_PERCENT, "sleeps_per_s": 9.0, "pss_mb": PSS_MB} for name in PROCESSES
    }
    figures[process] |= change

    def measured(*_: Any, **__: Any) -> tuple[int, dict[str, dict[str, float]]]:
        return answered, figures

    monkeypatch.setattr(idle, "measure", measured)
    assert idle.main([]) == code
