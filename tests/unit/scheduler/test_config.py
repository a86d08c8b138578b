"""The scheduler's flags."""

import pytest

from scheduler.config import SchedulerConfig
from scheduler.core.fair_queue import FairPolicy
from scheduler.core.fifo import FifoPolicy
from services.chassis.config import ConfigError, load


def read(*flags: str) -> SchedulerConfig:
    return load(SchedulerConfig, "scheduler", argv=flags, environ={})


def test_flags_become_the_cores_bounds() -> None:
    flags = ("--batch-wait-ms", "20", "--max-waiting", "7", "--max-waiting-tokens", "99")
    rules = read(*flags, "--submit-within-ms", "500").rules()
    assert (rules.batch_wait_s, rules.max_waiting, rules.max_waiting_tokens) == (0.02, 7, 99)
    assert (rules.match_within_s, rules.submit_within_s) == (0.005, 0.5)
    classes = read("--max-long-share", "0.5", "--long-workers", "a", "--long-workers", "b").rules()
    assert (classes.max_long_share, classes.max_short_share) == (0.5, 0.9)
    assert classes.long_workers == {"a", "b"}


def test_the_policy_is_chosen_by_a_flag() -> None:
    assert isinstance(read().new_policy(), FairPolicy)
    assert isinstance(read("--policy", "vtc").new_policy(), FairPolicy)
    assert isinstance(read("--policy", "fifo").new_policy(), FifoPolicy)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--batch-wait-ms", "-1"), "batch_wait_ms"),
        (("--max-waiting", "0"), "max_waiting"),
        (("--kvmanager", "nowhere"), "host:port"),
        (("--log-level", "loud"), "log_level"),
        (("--policy", "lottery"), "policy"),
        (("--batch-floor", "0.9"), "batch_floor"),
        (("--fair-quantum", "-1"), "fair_quantum"),
        (("--max-long-share", "0"), "max_long_share"),
        (("--max-wating", "3"), "--max-waiting"),
    ],
)
def test_a_bad_flag_is_one_line_that_names_it(flags: tuple[str, ...], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(*flags)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
