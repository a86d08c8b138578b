"""Measures one version of a model beside its float32 baseline: text, tasks and recorded outputs.

Knows runners, texts and tasks; knows nothing of files, formats or how a version was made.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from services.artifacts.chat_template import ChatTemplate
from services.artifacts.tokenizer import ModelTokenizer
from worker.quality.divergence import Divergence, DivergenceSum, Float32, repetition_rate
from worker.quality.runner import Runner
from worker.quality.tasks import Task, TaskKind

WINDOW = 512
"""Tokens of text that are read in one piece."""
ANSWER_TOKENS = 96
RECORDED_TOKENS = 96

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the only kind that tasks need."""

    content: str
    role: str = "user"
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """How a model reads text and questions."""

    tokenizer: ModelTokenizer
    template: ChatTemplate | None
    stop_ids: frozenset[int]

    def windows(self, text: str) -> list[list[int]]:
        """Cut a text into pieces of at most `WINDOW` tokens, each as if it stood alone."""
        bos = [self.tokenizer.bos_id] if self.tokenizer.add_bos and self.tokenizer.bos_id is not None else []
        ids = self.tokenizer.encode_text(text, add_bos=False)
        size = WINDOW - len(bos)
        pieces = [bos + ids[start : start + size] for start in range(0, len(ids), size)]
        return [piece for piece in pieces if len(piece) > 1 + len(bos)]

    def question(self, text: str) -> list[int]:
        """Return the prompt of a question: a chat where the model has a template."""
        if self.template is None:
            return self.tokenizer.encode_text(f"Question: {text}\nAnswer:", add_bos=True)
        return self.template.encode([Turn(text)])


@dataclass(frozen=True, slots=True)
class KindScore:
    """Right answers to one kind of task."""

    kind: TaskKind
    num_tasks: int
    num_right: int
    num_right_baseline: int

    @property
    def counts(self) -> bool:
        """Whether the baseline is good enough at it for a loss to mean anything: a fifth right."""
        return self.num_right_baseline >= 0.2 * self.num_tasks


@dataclass(slots=True, kw_only=True)
class Measured:
    """All that was found about one version."""

    texts: dict[str, Divergence]
    """By kind of text."""
    overall: Divergence
    left_out: list[str] = field(default_factory=list)
    """Kinds of text without a position."""
    layers: list[float] = field(default_factory=list)
    """Mean KL with one layer as in the version and all others as in the baseline, by layer; nats a token."""
    scores: list[KindScore] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)
    """The version's greedy ids for every task, by kind."""
    baseline_answers: list[list[int]] = field(default_factory=list)
    outputs: list[tuple[str, list[int]]] = field(default_factory=list)
    """Recorded prompts and the version's greedy ids."""
    baseline_outputs: list[tuple[str, list[int]]] = field(default_factory=list)

    @property
    def num_answers(self) -> int:
        """How many answers repetition is looked for in."""
        return len(self.outputs) + len(self.answers)

    @property
    def repetition(self) -> float:
        """Mean share of repeated runs of four tokens in all that the version said, 0..1.

        Recorded outputs alone are so few that a harmless version could be 0.05 above its baseline.
        """
        return _mean_repetition([*self.answers, *(ids for _, ids in self.outputs)])

    @property
    def baseline_repetition(self) -> float:
        return _mean_repetition([*self.baseline_answers, *(ids for _, ids in self.baseline_outputs)])


def measure_texts(
    baseline: Runner, version: Runner, reader: Reader, texts: Mapping[str, str], progress: Progress
) -> tuple[dict[str, Divergence], Divergence]:
    """Return the divergence over each kind of text, teacher-forced, and over all positions together.

    A kind that the tokeniser makes no two tokens of is left out.

    Raises:
        NoPositions: That is every kind.
    """
    whole, by_kind = DivergenceSum(), {}
    for kind, text in texts.items():
        windows = reader.windows(text)
        if not windows:
            continue
        part = DivergenceSum()
        for index, ids in enumerate(windows):
            progress(f"{kind} text {index + 1}/{len(windows)}")
            add_window(part, baseline.forced(ids), version.forced(ids), ids)
        by_kind[kind] = part.result()
        whole.merge(part)
    return by_kind, whole.result()


def add_window(
    part: DivergenceSum, baseline: Iterable[Float32], version: Iterable[Float32], ids: Sequence[int]
) -> None:
    """Count every position of one window in. baseline, version: its logits as `Runner.forced` gives them."""
    start = 0
    for base, ours in zip(baseline, version, strict=True):
        targets = np.array(ids[start + 1 : start + 1 + len(base)], np.int32)
        part.add(base, ours, targets)
        start += len(base)


def measure_tasks(
    found: Measured,
    baseline: Runner,
    version: Runner,
    reader: Reader,
    tasks: Sequence[Task],
    *,
    progress: Progress,
) -> None:
    """Put down both runners' greedy answers, and how many are right by kind."""
    for kind in TaskKind:
        chosen = [task for task in tasks if task.kind is kind]
        if not chosen:
            continue
        prompts = [reader.question(task.question) for task in chosen]
        right = []
        for name, runner, said in (
            ("baseline", baseline, found.baseline_answers),
            ("version", version, found.answers),
        ):
            progress(f"{kind} tasks, {name}")
            answers = runner.answers(prompts, max_tokens=ANSWER_TOKENS, stop_ids=reader.stop_ids)
            said += answers
            texts = [reader.tokenizer.decode(ids) for ids in answers]
            right.append(sum(task.is_right(text) for task, text in zip(chosen, texts, strict=True)))
        found.scores.append(KindScore(kind, len(chosen), right[1], right[0]))


def record_outputs(runner: Runner, reader: Reader, prompts: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Return the greedy ids for a fixed set of prompts: what a later diff compares."""
    ids = [reader.question(prompt) for prompt in prompts]
    outputs = runner.answers(ids, max_tokens=RECORDED_TOKENS, stop_ids=reader.stop_ids)
    return list(zip(prompts, outputs, strict=True))


def _mean_repetition(answers: Sequence[list[int]]) -> float:
    return float(np.mean([repetition_rate(ids) for ids in answers])) if answers else 0.0
