"""The list of ranked items is always in order, whatever is added, moved, removed and left out."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.ranked_list import MOST, Entry, RankedList


class Item:
    def __init__(self, number: int, key: float) -> None:
        self.order = (key, number)
        self.entry: Entry | None = None


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), num_items=st.sampled_from([0, 1, 5, 3 * MOST]))
def test_the_least_are_those_of_a_sorted_list(seed: int, num_items: int) -> None:
    draw, ranked = random.Random(seed), RankedList[Item]()
    inside: list[Item] = []
    for number in range(num_items):
        inside.append(Item(number, draw.choice([0.0, draw.uniform(0, 100)])))
        ranked.add(inside[-1])
    for _ in range(200):
        if inside and draw.random() < 0.7:
            item = draw.choice(inside)
            item.order = draw.uniform(0, 100), item.order[1]
            ranked.moved(item)
        elif inside:
            ranked.remove(inside.pop(draw.randrange(len(inside))))
        expected = sorted(inside, key=lambda one: one.order)
        assert list(ranked) == expected
        assert len(ranked) == len(expected)
        skip = set(draw.sample(inside, draw.randint(0, len(inside))))
        most, within = draw.randint(1, 20), draw.choice([0.0, 3.0, 1000.0])
        left = [one for one in expected if one not in skip]
        near = [one for one in left if one.order[0] <= left[0].order[0] + within]
        assert ranked.least(most, within, skip) == near[:most]


def test_an_item_that_left_may_come_back() -> None:
    ranked, item = RankedList[Item](), Item(1, 2.0)
    for _ in range(2):
        ranked.add(item)
        ranked.remove(item)
    assert (len(ranked), item.entry) == (0, None)
