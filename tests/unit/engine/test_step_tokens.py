"""Rows of tokens, cut and joined."""

from math import isnan

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.batch import TopLogprobs
from worker.engine.step_tokens import StepTokens, join

TOP = TopLogprobs((1, 2), (-0.5, -1.0))

Told = dict[tuple[int, int], list[tuple[int, int, float | None, TopLogprobs | None]]]
"""By handle and choice: position, id, log-probability and alternatives, in order."""


def told(*parts: StepTokens) -> Told:
    found: Told = {}
    for part in parts:
        start, tops = 0, dict(part.tops)
        columns = (part.handles, part.choices, part.first_positions, part.counts)
        for handle, choice, first, count in zip(*columns, strict=True):
            for offset in range(count):
                logprob = part.logprobs[start + offset] if part.logprobs else float("nan")
                entry = (
                    first + offset,
                    part.token_ids[start + offset],
                    None if isnan(logprob) else logprob,
                    tops.get(start + offset),
                )
                found.setdefault((handle, choice), []).append(entry)
            start += count
        assert start == len(part.token_ids)
        assert len(part.logprobs) in (0, start)
    return found


@st.composite
def steps(draw: st.DrawFn) -> list[StepTokens]:
    """Consecutive steps: often of the same choices with one id each, as generation makes them."""
    reached: dict[tuple[int, int], int] = {}
    parts = []
    same = draw(st.booleans())
    for number in range(draw(st.integers(1, 5))):
        part = StepTokens()
        for key in ((1, 0), (1, 1), (2, 0), (3, 0)):
            count = 1 if same else draw(st.integers(0, 2))
            if count:
                position = reached.get(key, 0)
                ids = [100 * number + 10 * key[0] + offset for offset in range(count)]
                index = part.add(*key, position, ids)
                reached[key] = position + count
                if draw(st.integers(0, 4)) == 0:
                    part.annotate(index, -0.25, draw(st.sampled_from([None, TOP])))
        parts.append(part.whole())
    return parts


@given(steps())
def test_joined_steps_say_what_the_steps_said(parts: list[StepTokens]) -> None:
    joined = join(parts)
    assert told(joined) == told(*parts)
    assert len(set(zip(joined.handles, joined.choices, strict=True))) == len(joined.handles)


@given(steps(), st.sets(st.integers(1, 3)))
def test_what_is_cut_out_and_what_is_left_are_the_whole(parts: list[StepTokens], handles: set[int]) -> None:
    for part in parts:
        inside = [row for row, handle in enumerate(part.handles) if handle in handles]
        outside = [row for row, handle in enumerate(part.handles) if handle not in handles]
        assert told(part.select(inside)) | told(part.select(outside)) == told(part)
