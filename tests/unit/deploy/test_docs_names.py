"""Files, symbols, links and metrics that the documents name are there: a rename takes its documents along."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("services", "gateway", "scheduler", "kvmanager", "worker")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{one.name}" for one in ROOT.glob("docs/*.md")))
TEXTS = {name: " ".join((ROOT / name).read_text("utf-8").split()) for name in DOCUMENTS}
NO_METRICS = {"quire_local_team", "quire_config"}
"""Of a key and of a volume."""
FILE = r"(?:(?:services|gateway|scheduler|kvmanager|worker|bench|tests|deploy|protos|docs)/[\w/.-]+\.[a-z]+)"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_and_link_is_there(document: str) -> None:
    named = re.findall(rf"`({FILE})[`:]", TEXTS[document])
    links = [one for one in re.findall(r"\]\(([^)#]+)", TEXTS[document]) if "://" not in one]
    missing = [name for name in named if not (ROOT / name).exists()]
    assert missing == []
    assert [link for link in links if not (ROOT / document).parent.joinpath(link).exists()] == []


def test_every_symbol_is_in_the_file_that_it_is_named_with() -> None:
    named = re.findall(rf"`({FILE}): ([\w.]+)`", TEXTS["docs/architecture.md"])
    assert len(named) > 10
    sources = {file: (ROOT / file).read_text("utf-8") for file, _ in named}
    missing = [
        (file, symbol)
        for file, symbols in named
        for symbol in symbols.split(".")
        if not re.search(rf"\b(def|class) {symbol}\b", sources[file])
    ]
    assert missing == []


def test_every_metric_is_one() -> None:
    sources = [path.read_text("utf-8") for package in PACKAGES for path in ROOT.glob(f"{package}/**/*.py")]
    known = {name for source in sources for name in re.findall(r'"((?:quire|gen_ai)_\w+)"', source)}
    named = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for text in TEXTS.values()
        for name in re.findall(r"\b(?:quire|gen_ai)_\w+", text)
    }
    assert len(named) > 10
    assert named - known == NO_METRICS
