"""Estimate: about how long a step of a draft takes, to rank drafts before they are judged.

A draft is a set of parts. With M micro-batches of which K may be in flight, a part that waits R
seconds from its first forward to the gradient is busy or idle for M (f + b) + idle seconds, idle =
max(0, R - (K-1) f) + max(0, R - (K-1) b), only the larger of the two if all M are in flight:

    K = 2, M = 4    F F . . B F . B F B . B      R: from the end of the first F to its B
                        ^^^         idle before the first B, and again while the last ones return

The last tasks of a part follow those of its neighbours. Where messages are slow, a micro-batch may
also take (f + R + b) / K. Parts that share devices add up their times and use each other's idle
time.

K is that of 1F1B. A *relaxed* estimate is that of schedules that are searched for: K is what memory
allows, and gradients go back at once, weight gradients waiting for idle time.

The loops below are compiled. Parts are numbered, edges lead from a part to one that reads from it;
arrays in `part`, `edge` and `way` are explained where appraise.py makes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphplan.cost.inflight import need_samples
from graphplan.jit import compile_loop
from graphplan.nouns.problem import Floats, Ints

(FORWARD, BACKWARD, RETURNING, WEIGHTS, CLOSING) = range(5)
"""Rows of `seconds`, of one micro-batch: forward; backward; what a gradient waits for on its way
back; what is left of the backward then; reduction and update at the end of the step."""
(FIXED, SAVED, WORKSPACE) = range(3)
"""Rows of `memory`: bytes whatever is in flight, of each micro-batch in flight, of a task."""


@compile_loop
def sum_messages(
    part_of: Ints, size_of: Ints, flows: tuple[Ints, Ints, Ints, Any], flow_bytes: Ints
) -> tuple[Ints, Floats]:
    """Edges [2, n] between parts, and bytes [2, n] of a micro-batch of the sender, forward and
    backward; -1 where no gradient goes back. A tensor goes to a part once, however many of its
    nodes read it."""
    owner, first, reader, needs_grad = flows
    num = len(size_of)
    ahead, back = np.full((num, num), -1.0), np.full((num, num), -1.0)
    seen = np.full(num, -1)
    for flow in range(len(owner)):
        src = part_of[owner[flow]]
        for place in range(first[flow], first[flow + 1]):
            dst = part_of[reader[place]]
            if dst == src or seen[dst] == flow:
                continue
            seen[dst] = flow
            ahead[src, dst] = max(ahead[src, dst], 0.0) + flow_bytes[flow, size_of[src]]
            if needs_grad[flow]:
                back[src, dst] = max(back[src, dst], 0.0) + flow_bytes[flow, size_of[dst]]
    count = 0
    for src in range(num):
        for dst in range(num):
            count += ahead[src, dst] >= 0.0
    edges, amounts = np.zeros((2, count), np.int64), np.zeros((2, count))
    count = 0
    for src in range(num):
        for dst in range(num):
            if ahead[src, dst] >= 0.0:
                edges[0, count], edges[1, count] = src, dst
                amounts[0, count], amounts[1, count] = ahead[src, dst], back[src, dst]
                count += 1
    return edges, amounts


@compile_loop
def sort_parts(num: int, edges: Ints) -> Ints:
    """Parts in a topological order; fewer of them if they wait for each other."""
    missing = np.zeros(num, np.int64)
    for dst in edges[1]:
        missing[dst] += 1
    order = np.zeros(num, np.int64)
    count = 0
    for p in range(num):
        if missing[p] == 0:
            order[count] = p
            count += 1
    place = 0
    while place < count:
        for e in range(edges.shape[1]):
            if edges[0, e] == order[place]:
                missing[edges[1, e]] -= 1
                if missing[edges[1, e]] == 0:
                    order[count] = edges[1, e]
                    count += 1
        place += 1
    return order[:count]


@compile_loop
def estimate_step(
    batch: int,
    relaxed: bool,
    order: Ints,
    part: tuple[Ints, Ints, Any],
    seconds: Floats,
    memory: Floats,
    rooms: Floats,
    edge: tuple[Ints, Any, Floats],
) -> tuple[float, float, int, int, Ints, Floats]:
    """Step seconds, seconds of one sample on the busiest group and its number, the part that ends
    last, the part whose forward each last forward waits for (-1: none), bytes missing by group."""
    size, group, trains = part
    edges, returns, delay = edge
    num = len(size)
    ways = _measure_ways(order, size, seconds, edges, returns, delay)
    in_flight = _count_in_flight(batch, order, size, edges, returns)
    loads = np.zeros(len(rooms))
    for p in range(num):
        loads[group[p]] += (seconds[FORWARD, p] + seconds[BACKWARD, p]) / size[p]
    busiest = int(np.argmax(loads))
    missing = _measure_missing(group, in_flight, memory, rooms)
    if relaxed:
        in_flight = _fill_memory(batch, size, group, in_flight, memory, missing)
    spans = _measure_spans(batch, size, group, seconds, ways[1], in_flight, loads)
    lasts, sources = _find_lasts(
        batch, relaxed, order, size, seconds, (edges, delay), ways, in_flight, spans
    )
    step_s, worst = _find_end(order, seconds, (edges, returns, delay), ways, spans, lasts)
    step_s, worst = _close_groups(batch, group, seconds[CLOSING], ways[0], loads, (step_s, worst))
    longest = 0.0  # seconds by which slow messages stretch the steady state
    for p in range(num):
        ahead = in_flight[p] * size[p]
        if trains[p] and batch > ahead:
            period = (seconds[FORWARD, p] + seconds[BACKWARD, p] + ways[1, p]) / ahead
            longest = max(longest, (batch - ahead) * (period - loads[busiest]))
    return step_s + longest, loads[busiest], busiest, worst, sources, missing


def _measure_ways(
    order: Ints, size: Ints, seconds: Floats, edges: Ints, returns: Any, delay: Floats
) -> Floats:
    """Seconds before a part's first forward, from its end to the backward, and after that."""
    ways = np.zeros((3, len(size)))
    for p in order:
        for e in range(edges.shape[1]):
            if edges[1, e] == p:
                src = edges[0, e]
                # A larger micro-batch waits for several of the sender's.
                tasks = max(1.0, size[p] / size[src])
                head = ways[0, src] + tasks * seconds[FORWARD, src] + delay[0, e]
                ways[0, p] = max(ways[0, p], head)
                if returns[e]:
                    tail = ways[2, src] + seconds[RETURNING, src] + delay[1, e]
                    ways[2, p] = max(ways[2, p], tail)
    for p in order[::-1]:
        for e in range(edges.shape[1]):
            if edges[0, e] == p and returns[e]:
                dst = edges[1, e]
                tasks = max(1.0, size[p] / size[dst])
                there = delay[0, e] + tasks * seconds[FORWARD, dst] + ways[1, dst]
                back = tasks * seconds[RETURNING, dst] + delay[1, e]
                ways[1, p] = max(ways[1, p], there + back)
    return ways


def _count_in_flight(batch: int, order: Ints, size: Ints, edges: Ints, returns: Any) -> Ints:
    """Micro-batches in flight at every part (see cost/inflight.py)."""
    samples = np.zeros(len(size), np.int64)
    for p in order[::-1]:
        need = size[p]
        for e in range(edges.shape[1]):
            if edges[0, e] == p:
                dst = edges[1, e]
                if returns[e]:
                    need = max(need, need_samples(size[p], samples[dst], size[dst]))
                else:
                    need = max(need, samples[dst])
        samples[p] = -(-need // size[p]) * size[p]
    return np.minimum(batch, samples) // size


def _measure_missing(group: Ints, in_flight: Ints, memory: Floats, rooms: Floats) -> Floats:
    """Bytes that are missing on every group of devices; negative: left."""
    held, workspace = np.zeros(len(rooms)), np.zeros(len(rooms))
    for p in range(len(group)):
        held[group[p]] += memory[FIXED, p] + in_flight[p] * memory[SAVED, p]
        workspace[group[p]] = max(workspace[group[p]], memory[WORKSPACE, p])
    return held + workspace - rooms


def _fill_memory(
    batch: int, size: Ints, group: Ints, in_flight: Ints, memory: Floats, missing: Floats
) -> Ints:
    """Micro-batches in flight when the parts of a group share what memory is left."""
    saved = np.zeros(len(missing))
    for p in range(len(group)):
        saved[group[p]] += memory[SAVED, p]
    filled = in_flight.copy()
    for p in range(len(group)):
        most, own = batch // size[p], saved[group[p]]
        further = most if own == 0.0 else max(0.0, -missing[group[p]]) // own
        filled[p] = int(min(most, in_flight[p] + further))
    return filled


def _measure_spans(
    batch: int,
    size: Ints,
    group: Ints,
    seconds: Floats,
    arounds: Floats,
    in_flight: Ints,
    loads: Floats,
) -> Floats:
    """Seconds from the first forward of every part to its last backward, idle ones included."""
    spans = np.zeros(len(size))
    for p in range(len(size)):
        count = batch // size[p]
        ahead = min(count, in_flight[p]) - 1
        first = max(0.0, arounds[p] - ahead * seconds[FORWARD, p])
        last = max(0.0, arounds[p] - ahead * seconds[BACKWARD, p])
        idle = first + last if count > ahead + 1 else max(first, last)
        alone = count * (seconds[FORWARD, p] + seconds[BACKWARD, p]) + idle
        # Other parts on the same devices may run while this one waits.
        spans[p] = max(batch * loads[group[p]], alone)
    return spans


def _find_lasts(
    batch: int,
    relaxed: bool,
    order: Ints,
    size: Ints,
    seconds: Floats,
    edge: tuple[Ints, Floats],
    ways: Floats,
    in_flight: Ints,
    spans: Floats,
) -> tuple[Floats, Ints]:
    """Start of the last forward of every part, and the part that it waits for, if any."""
    edges, delay = edge
    lasts, sources = np.zeros(len(size)), np.full(len(size), -1)
    for p in order:
        count, forward_s = batch // size[p], seconds[FORWARD, p]
        if relaxed:
            # Forwards go ahead until memory is full.
            returned = max(0, count - in_flight[p])
            steady = (count - 1) * forward_s + returned * seconds[RETURNING, p]
        else:
            steady = spans[p] - ways[1, p] - forward_s - seconds[BACKWARD, p]
        lasts[p] = ways[0, p] + max((count - 1) * forward_s, steady)
        for e in range(edges.shape[1]):
            if edges[1, e] == p:
                src = edges[0, e]
                last = lasts[src] + seconds[FORWARD, src] + delay[0, e]
                if last >= lasts[p]:
                    lasts[p], sources[p] = last, src
    return lasts, sources


def _find_end(
    order: Ints,
    seconds: Floats,
    edge: tuple[Ints, Any, Floats],
    ways: Floats,
    spans: Floats,
    lasts: Floats,
) -> tuple[float, int]:
    """End of the step, and the part that ends last or whose gradient is waited for."""
    edges, returns, delay = edge
    step_s, worst = 0.0, 0
    returned = np.zeros(len(lasts))
    for p in order[::-1]:
        around = seconds[FORWARD, p] + ways[1, p] + seconds[RETURNING, p]
        returned[p] = lasts[p] + around
        for e in range(edges.shape[1]):
            if edges[0, e] == p and returns[e]:
                end = returned[edges[1, e]] + delay[1, e] + seconds[RETURNING, p]
                returned[p] = max(returned[p], end)
        busy_s = max(returned[p] + seconds[WEIGHTS, p], ways[0, p] + spans[p])
        end = max(returned[p] + ways[2, p], busy_s + seconds[CLOSING, p])
        if end > step_s:
            step_s, worst = end, p
    return step_s, worst


def _close_groups(
    batch: int,
    group: Ints,
    closing: Floats,
    heads: Floats,
    loads: Floats,
    known: tuple[float, int],
) -> tuple[float, int]:
    """The later of what is known and when devices that several parts share have done all work and
    closed all of them; with the part of the longest closing."""
    step_s, worst = known
    for g in range(len(loads)):
        num_parts, total_s, start_s, longest = 0, 0.0, np.inf, -1
        for p in range(len(group)):
            if group[p] == g:
                num_parts += 1
                total_s += closing[p]
                start_s = min(start_s, heads[p])
                if longest < 0 or closing[p] > closing[longest]:
                    longest = p
        busy_s = start_s + batch * loads[g] + total_s
        if num_parts > 1 and busy_s > step_s:
            step_s, worst = busy_s, longest
    return step_s, worst
