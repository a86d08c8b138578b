"""The scheduler's flags."""

from pathlib import Path

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


BANDS = """
[[scheduler.bands]]
name = "live"
target_ms = 500
[[scheduler.bands]]
name = "night"
floor = 0.2
[[scheduler.bands]]
name = "weekly"
floor = 0.1
target_ms = 60000
"""


def test_bands_their_order_and_their_floors_are_the_files(tmp_path: Path) -> None:
    file = tmp_path / "quire.toml"
    file.write_text(BANDS)
    config = load(SchedulerConfig, "scheduler", argv=("--config", str(file)), environ={})
    rules = config.rules()
    assert rules.bands.names == ("live", "night", "weekly")
    assert rules.ladder.targets_s == {1: 0.5, 3: 60.0}
    fair = config.fair_rules()
    assert (fair.num_bands, dict(fair.floors)) == (3, {1: 0.0, 2: 0.2, 3: 0.1})


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("bands = []", "1 to 8 different names"),
        ('bands = [{name = "a"}, {name = "a", floor = 0.1}]', "different names, got a, a"),
        ('bands = [{name = "A b"}]', "bands.name must be 1 to 64 of a-z"),
        ('bands = [{name = "a", floor = 0.5}, {name = "b", floor = 0.5}]', "sum to less than 1, got 1"),
        ('bands = [{name = "a", floor = -0.1}]', "bands.a.floor must be 0 to 0.99, got -0.1"),
        ('bands = [{name = "a"}, {name = "b"}]', "bands.b.floor must be 0.001 to 0.99, got 0.0"),
        ('bands = [{name = "a"}, {name = "b", floor = 0}]', "bands.b.floor must be 0.001 to 0.99, got 0"),
        ('bands = [{name = "a", flor = 0.1}]', "a table of name, floor, target_ms"),
    ],
)
def test_bad_bands_are_refused_by_name(tmp_path: Path, text: str, rule: str) -> None:
    file = tmp_path / "quire.toml"
    file.write_text(f"[scheduler]\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load(SchedulerConfig, "scheduler", argv=("--config", str(file)), environ={})
    assert rule in str(caught.value)


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
