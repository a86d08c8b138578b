"""deploy/alerts.yaml loads as rules for Prometheus of metrics that there are, all told in docs/tenants.md."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FILE = ROOT / "deploy" / "alerts.yaml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
]
SOURCES = [
    path.read_text("utf-8") for name in ("gateway", "scheduler") for path in ROOT.glob(f"{name}/**/*.py")
]
METRICS = {name for source in SOURCES for name in re.findall(r'"(quire_\w+)"', source)}


def test_every_alert_is_explained_and_every_one_that_is_explained_is_a_rule() -> None:
    section = (ROOT / "docs/tenants.md").read_text("utf-8").partition("## Alerts worth having")[2]
    told = re.findall(r"^\| `(Quire\w+)`: ", section.partition("\n## ")[0], re.MULTILINE)
    assert told == [rule["alert"] for rule in RULES]
    assert len(set(told)) == len(told) == 10


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_a_rule_is_whole_and_asks_for_metrics_that_there_are(rule: dict[str, Any]) -> None:
    assert (
        {"alert", "expr", "labels", "annotations"}
        <= set(rule)
        <= {"alert", "expr", "for", "labels", "annotations"}
    )
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
    named = {re.sub(r"_bucket$", "", name) for name in re.findall(r"quire_\w+", rule["expr"])}
    assert named, rule["expr"]
    assert named <= METRICS
    for opening, closing in ("()", "[]", "{}"):
        assert rule["expr"].count(opening) == rule["expr"].count(closing)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on this machine")
def test_prometheus_takes_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", str(FILE)], check=True)
