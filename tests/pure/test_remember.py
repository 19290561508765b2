"""What a method has answered is remembered by its object, and forgotten with it."""

from __future__ import annotations

import gc
import weakref

from graphplan.partition.pipelines.remember import remember


class Doubler:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.num_asked = 0

    @remember
    def double(self, number: int, *, negative: bool = False) -> int:
        """Twice the number."""
        self.num_asked += 1
        return -2 * number if negative else 2 * number


def test_equal_questions_are_answered_once() -> None:
    """By each object for itself."""
    one, other = Doubler(), Doubler()
    assert [one.double(3), one.double(3), one.double(3, negative=True)] == [6, 6, -6]
    assert other.double(3) == 6
    assert (one.num_asked, other.num_asked) == (2, 1)


def test_the_object_may_go() -> None:
    """Nothing else keeps it alive: tables of a problem take much memory."""
    one = Doubler()
    one.double(1)
    alive = weakref.ref(one)
    del one
    gc.collect()
    assert alive() is None
