"""Events of (time, number), the first one first: a binary heap in two arrays."""

from __future__ import annotations

from graphplan.play.script import Floats, Ints


def push_event(heap_s: Floats, heap_machine: Ints, queued: int, time: float, machine: int) -> int:
    """Add an event to the heap of (time, machine); the new number of events."""
    place = queued
    while place > 0:
        parent = (place - 1) >> 1
        above, other = heap_s[parent], heap_machine[parent]
        if above < time or (above == time and other <= machine):
            break
        heap_s[place], heap_machine[place] = above, other
        place = parent
    heap_s[place], heap_machine[place] = time, machine
    return queued + 1


def drop_event(heap_s: Floats, heap_machine: Ints, queued: int) -> None:
    """Take the first event off the heap: the last of its `queued` + 1 finds its place."""
    time, machine = heap_s[queued], heap_machine[queued]
    place = 0
    child = 1
    while child < queued:
        right = child + 1
        if right < queued and (
            heap_s[right] < heap_s[child]
            or (heap_s[right] == heap_s[child] and heap_machine[right] < heap_machine[child])
        ):
            child = right
        below, other = heap_s[child], heap_machine[child]
        if time < below or (time == below and machine <= other):
            break
        heap_s[place], heap_machine[place] = below, other
        place = child
        child = 2 * place + 1
    heap_s[place], heap_machine[place] = time, machine
