"""What docs/tenants.md and redis.md tell people to type is understood; the declaration is as promised."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from services.commands import top
from services.commands.tenant import _parser
from services.domain.tenant_book import TenantBook
from services.domain.tenant_document import FIELDS, tenants_from_documents

TEXT, REDIS_TEXT = (
    (Path(__file__).parents[3] / "docs" / name).read_text("utf-8") for name in ("tenants.md", "redis.md")
)
LINES, REDIS_LINES = (
    [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines() if line]
    for text in (TEXT, REDIS_TEXT)
)
TENANT_LINES = sorted({line for line in LINES + REDIS_LINES if line.startswith("quire tenant ")})


def test_every_command_is_one_that_is_checked_here_or_known() -> None:
    others = {shlex.split(line)[0] for line in LINES if line not in TENANT_LINES}
    assert others == {"quire", "curl"}
    assert [line for line in LINES if line.startswith("quire up")] == ["quire up --sim"]
    assert {shlex.split(line)[0] for line in REDIS_LINES} == {"quire", "docker"}
    assert len(TENANT_LINES) > 10


@pytest.mark.parametrize("line", TENANT_LINES)
def test_a_command_parses(line: str) -> None:
    words = shlex.split(line.partition(" > ")[0])
    args = _parser().parse_args(words[2:])
    assert args.run is not None


def test_top_is_called_with_flags_that_it_has() -> None:
    lines = [line for line in LINES if line.startswith("quire top")]
    assert [top.arguments(shlex.split(line)[2:]).once for line in lines] == [False, True]


def test_the_declared_tenants_are_valid_and_ten_below_one_organisation() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    tenants = tenants_from_documents(yaml.safe_load(block)["tenants"])
    book = TenantBook(tenants)
    assert [one.parent for one in tenants] == [None] + ["acme"] * 10
    assert len(book) == 11


def test_every_field_in_the_table_is_one_and_every_field_that_limits_is_told() -> None:
    table = TEXT.partition("## What each number does")[2].partition("## How to read")[0]
    names = {name for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE) for name in row.split(", ")}
    told = {name.strip("`") for name in names}
    assert told <= set(FIELDS)
    assert set(FIELDS) - told <= {"id", "name", "model_limits"}
