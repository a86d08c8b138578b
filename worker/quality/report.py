"""What was measured, as a table for a terminal, Markdown, JSON and the recorded outputs as lines to diff.

Knows figures; knows nothing of how they came about.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from worker.quality.measure import Measured
from worker.quality.verdict import Check, gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version, measured and judged."""

    name: str
    digest: str
    """What decides its bits: weights, executor, compute and KV format."""
    settings: Mapping[str, str]
    """compute, kv, instruction set and baseline, as people know them."""
    measured: Measured
    checks: Sequence[Check]

    @property
    def fails(self) -> bool:
        """Whether what was measured is beyond a threshold."""
        return not all(check.holds for check in self.checks)

    @property
    def passes(self) -> bool:
        """Whether every threshold holds, over enough text and tasks to say so of the whole model."""
        return not self.fails and not gaps(self.measured)

    @property
    def verdict(self) -> str:
        """Return the verdict in words; too little measured allows none but FAILS."""
        if self.passes:
            return "passes"
        word, lacking = "FAILS" if self.fails else "no verdict", gaps(self.measured)
        return f"{word}, measured in part only: {'; '.join(lacking)}" if lacking else word


Rows = list[list[str]]


def tables(versions: Sequence[Version]) -> list[tuple[str, list[str], Rows]]:
    """Return title, head and rows of every table, the same for terminal and Markdown."""
    text_head = ["version", "text", "positions", "mean KL", "worst KL", "top-1", "perplexity", "float32's"]
    task_head = ["version", "tasks", "right", "float32's", "counts"]
    output_head = ["version", "answers", "repetition rate", "float32's"]
    kinds: list[tuple[str, list[str], Callable[[Version], Rows]]] = [
        ("Text, teacher-forced, against float32", text_head, _text_rows),
        ("Right answers", task_head, _task_rows),
        ("Repetition", output_head, _output_rows),
        ("Verdict", ["version", "check", "value", "limit", ""], _check_rows),
    ]
    return [
        (title, head, [[version.name, *row] for version in versions for row in rows_of(version)])
        for title, head, rows_of in kinds
    ]


def _text_rows(version: Version) -> Rows:
    return [
        [
            kind,
            f"{part.num_positions:,}",
            f"{part.mean_kl:.5f}",
            f"{part.worst_kl:.3f}",
            f"{part.agreement:.4f}",
            f"{part.perplexity:.3f}",
            f"{part.baseline_perplexity:.3f}",
        ]
        for kind, part in [*version.measured.texts.items(), ("all", version.measured.overall)]
    ]


def _task_rows(version: Version) -> Rows:
    return [
        [
            score.kind,
            f"{score.num_right}/{score.num_tasks}",
            f"{score.num_right_baseline}/{score.num_tasks}",
            "yes" if score.counts else "no: the baseline is under 20 %",
        ]
        for score in version.measured.scores
    ]


def _output_rows(version: Version) -> Rows:
    measured = version.measured
    if not measured.num_answers:
        return []
    return [[str(measured.num_answers), f"{measured.repetition:.4f}", f"{measured.baseline_repetition:.4f}"]]


def _check_rows(version: Version) -> Rows:
    return [
        [check.name, f"{check.value:.5f}", f"{check.limit:g}", "holds" if check.holds else "FAILS"]
        for check in version.checks
    ]


def markdown(versions: Sequence[Version], picture: str | None) -> str:
    """Return a page with every table and, where there is one, the picture by its file name."""
    lines = ["# Quality", ""]
    for version in versions:
        settings = ", ".join(f"{key} {value}" for key, value in version.settings.items())
        lines.append(f"- **{version.name}** {version.verdict} (digest `{version.digest}`; {settings})")
    for title, head, rows in tables(versions):
        if rows:
            lines += ["", f"## {title}", "", _row(head), _row(["---"] * len(head)), *map(_row, rows)]
    if picture is not None:
        lines += ["", f"![KL by layer and by kind of text]({picture})"]
    return "\n".join(lines) + "\n"


def as_json(versions: Sequence[Version]) -> str:
    """Return everything but the recorded outputs."""
    found = []
    for version in versions:
        measured = version.measured
        found.append(
            {
                "name": version.name,
                "digest": version.digest,
                "passes": version.passes,
                "fails": version.fails,
                "partial": gaps(measured),
                "settings": dict(version.settings),
                "texts": {kind: asdict(part) for kind, part in measured.texts.items()},
                "all": asdict(measured.overall),
                "layers": measured.layers,
                "tasks": [asdict(score) | {"counts": score.counts} for score in measured.scores],
                "repetition": measured.repetition,
                "baseline_repetition": measured.baseline_repetition,
                "checks": [asdict(check) for check in version.checks],
            }
        )
    return json.dumps(found, indent=1) + "\n"


def outputs_text(
    digest: str, outputs: Sequence[tuple[str, list[int]]], decode: Callable[[Sequence[int]], str]
) -> str:
    """Return recorded outputs, one JSON line a prompt, so that `diff` of two versions' files shows all."""
    lines = [json.dumps({"digest": digest}, ensure_ascii=False)]
    lines += [
        json.dumps({"prompt": prompt, "text": decode(ids), "ids": ids}, ensure_ascii=False)
        for prompt, ids in outputs
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
