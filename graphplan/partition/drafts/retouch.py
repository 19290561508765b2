"""Retouch: where the nodes of a window run, as a program for CP-SAT.

Ladder variables: y[v, j] = 1 when node v is in one of the parts first .. j (see program.py). What a
part takes (seconds, weights, bytes) is that of the draft, and for every node that comes or goes
what it adds or takes away by itself, from the prices of the appraisal: exact for seconds, nearly so
for what nodes share. z[t, q, p] = 1 when part q sends tensor t to part p.

The rows are those of the appraisal, whose names are used (appraise.py); micro-batches in flight
stay those of the draft. Seconds are whole units of about a millionth of the step.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from graphplan.nouns.problem import Floats, Problem
from graphplan.partition.drafts.appraise import Appraiser
from graphplan.partition.drafts.estimate import PartPrice
from graphplan.partition.drafts.inflight import count_in_flight
from graphplan.partition.drafts.scene import Draft, change_nodes
from graphplan.partition.drafts.window import open_window

UNITS = 1 << 20
"""Units of the draft's step."""
MEMORY_UNITS = 1 << 16
"""Units of the memory of a device."""
MAX_CHOICES = 300
"""Ladder variables."""
MAX_PRICED = 200_000
"""Nodes of all parts whose price is asked for, added up."""
LOOSE = 1.02
"""The second aim may give away this much of the first."""

Literal = Any
"""A variable of CP-SAT, its negation, or a constant."""


class Retouch:
    """The program of one draft, whose parts are in a topological order."""

    def __init__(self, appraiser: Appraiser, work: Floats, draft: Draft) -> None:
        from ortools.sat.python import cp_model

        self.appraiser, self.problem, self.draft = appraiser, appraiser.problem, draft
        self.batch: int = self.problem.training.batch_size
        appraisal = appraiser.appraise(draft)
        assert appraisal is not None, "the parts of a draft to retouch have an order"
        self.unit_s = max(appraisal.step_s, 1e-12) / UNITS
        self.model: Any = cp_model.CpModel()
        mean = self.problem.num_nodes / len(draft)
        choices = min(MAX_CHOICES, int(MAX_PRICED / mean))
        self.window = open_window(self.problem, work, draft, max_choices=choices, reach=len(draft))
        self.free = self.window.free
        self.num_free = len(self.free)
        self.prices = [appraiser.price(part) for part in draft]
        if self.num_free:
            self._write_ladders()
            self._write_messages()
            self._write_rows(appraisal.period_s)

    def list_aims(self) -> Iterator[Any]:
        """What to minimise in turn: the step, and then the busiest device at a similar step."""
        if self.num_free:
            yield self.step
            yield self.busiest

    def keep_step(self, units: int) -> None:
        """Later aims may not give away more than a little of the step."""
        self.model.add(self.step <= int(units * LOOSE))

    def read_places(self, value: Callable[[Literal], bool]) -> dict[int, int]:
        """The part of every free node, from the values of the ladder."""
        return {v: self.window.last[v] - sum(value(y) for y in self.ladder[v]) for v in self.free}

    # -- ladders ---------------------------------------------------------------------------------

    @cached_property
    def part_of(self) -> dict[int, int]:
        """The part of every node in the draft."""
        return {node: p for p, part in enumerate(self.draft) for node in part.nodes}

    def _write_ladders(self) -> None:
        """Who is in the parts up to j is in those up to j + 1, and so is all that it needs."""
        first, last = self.window.first, self.window.last
        self.ladder: dict[int, list[Any]] = {}
        for v in self.free:
            rungs = [self.model.new_bool_var("") for _ in range(last[v] - first[v])]
            self.ladder[v] = rungs
            for low, high in itertools.pairwise(rungs):
                self.model.add_implication(low, high)
            for j, rung in enumerate(rungs):
                self.model.add_hint(rung, self.part_of[v] <= first[v] + j)
        for src, dst in self.problem.edges:
            for j in range(first[dst], last[src]):
                before, after = self.rung(src, j), self.rung(dst, j)
                if after is not False and before is not True:
                    self.model.add_implication(after, before)

    def rung(self, v: int, j: int) -> Literal:
        """Whether node v is in a part up to j."""
        if j < self.window.first[v]:
            return False
        if j >= self.window.last[v]:
            return True
        return self.ladder[v][j - self.window.first[v]]

    def member(self, v: int, p: int) -> Any:
        """1 if node v is in part p."""
        return self.rung(v, p) - self.rung(v, p - 1)

    # -- prices ----------------------------------------------------------------------------------

    @cached_property
    def changes(self) -> list[list[tuple[int, PartPrice, bool]]]:
        """For every part the free nodes that may come or go, the price then, and if it is there."""
        found: list[list[tuple[int, PartPrice, bool]]] = [[] for _ in self.draft]
        for v in self.free:
            for p in range(self.window.first[v], self.window.last[v] + 1):
                part, inside = self.draft[p], self.part_of[v] == p
                if inside and len(part.nodes) == 1:
                    found[p].append((v, NOTHING, inside))
                    continue
                other = change_nodes(part, drop=[v]) if inside else change_nodes(part, add=[v])
                found[p].append((v, self.appraiser.price(other), inside))
        return found

    def amount(self, p: int, read: Callable[[PartPrice], float], factor: float) -> Any:
        """An amount of a part times a factor, as an expression in whole numbers."""
        now = read(self.prices[p])
        total: Any = round(now * factor)
        for v, price, inside in self.changes[p]:
            change = round((read(price) - now) * factor)
            if change:
                total += change * ((1 - self.member(v, p)) if inside else self.member(v, p))
        return total

    def seconds(self, p: int, name: str, factor: float = 1.0) -> Any:
        """Seconds of a part by the name of the price, in units."""
        return self.amount(p, lambda price: float(getattr(price, name)), factor / self.unit_s)

    # -- messages --------------------------------------------------------------------------------

    def _write_messages(self) -> None:
        """z[t, q, p] is 1 if the owner of t is in q and a reader in p."""
        size_of = [self.problem.size_index[part.micro_batch_size] for part in self.draft]
        self.bytes: dict[tuple[int, int], list[tuple[Literal, int]]] = defaultdict(list)
        """By sender and receiver, literals and what is sent when they are true."""
        self.links: dict[tuple[int, int], list[Literal]] = defaultdict(list)
        """Literals that mean that part q sends to part p."""
        self.returns: dict[tuple[int, int], list[Literal]] = defaultdict(list)
        """The same for gradients on their way back from p to q."""
        for flow in self.problem.flows:
            if flow.owner is None:
                continue
            for (q, p), sent in self._list_transfers(flow.owner, flow.readers).items():
                self.links[q, p].append(sent)
                self.bytes[q, p].append((sent, flow.bytes_by_size[size_of[q]]))
                if flow.needs_grad:
                    self.returns[q, p].append(sent)
                    self.bytes[p, q].append((sent, flow.bytes_by_size[size_of[p]]))
        self.linked = {pair: self._any(found) for pair, found in self.links.items()}
        self.returning = {pair: self._any(found) for pair, found in self.returns.items()}

    def _list_transfers(self, owner: int, readers: Sequence[int]) -> dict[tuple[int, int], Literal]:
        first, last = self.window.first, self.window.last
        clauses: dict[tuple[int, int], list[list[Literal]]] = defaultdict(list)
        for q in range(first[owner], last[owner] + 1):
            for reader in dict.fromkeys(readers):
                for p in range(max(q + 1, first[reader]), last[reader] + 1):
                    unless = [
                        *_negate(self.rung(owner, q)),
                        *_keep(self.rung(owner, q - 1)),
                        *_negate(self.rung(reader, p)),
                        *_keep(self.rung(reader, p - 1)),
                    ]
                    clauses[q, p].append(unless)
        found: dict[tuple[int, int], Literal] = {}
        for pair, unlesses in clauses.items():
            if not all(unlesses):
                found[pair] = True
                continue
            sent = found[pair] = self.model.new_bool_var("")
            for unless in unlesses:
                self.model.add_bool_or([sent, *unless])
        return found

    def _any(self, literals: list[Literal]) -> Literal:
        """A literal that is true if any of these is."""
        if any(each is True for each in literals):
            return True
        if len(literals) == 1:
            return literals[0]
        found = self.model.new_bool_var("")
        for each in literals:
            self.model.add_implication(each, found)
        return found

    def delay(self, q: int, p: int) -> Any:
        """From the end of a task of q to the arrival of all that it sends to p, in units."""
        src, dst = self.draft[q].devices, self.draft[p].devices
        if src == dst:
            return 0
        way = self.appraiser.way(src, dst)
        per_byte = way.seconds_per_byte / self.unit_s
        return round(way.latency_s / self.unit_s) + _weigh(self.bytes[q, p], per_byte)

    # -- rows ------------------------------------------------------------------------------------

    def _write_rows(self, period_s: float) -> None:
        model, count = self.model, len(self.draft)
        self.f = [self.seconds(p, "forward_s") for p in range(count)]
        self.b = [self.seconds(p, "backward_s") for p in range(count)]
        self.heads, self.arounds, self.tails, self.lasts, self.ends, self.spans = (
            [model.new_int_var(0, 8 * UNITS, "") for _ in self.draft] for _ in range(6)
        )
        self.step = model.new_int_var(0, 8 * UNITS, "step")
        self.busiest = model.new_int_var(0, 8 * UNITS, "busiest")
        self._follow_links()
        self._limit_loads()
        for p in range(count):
            self._span_part(p)
        self._limit_channels(period_s)
        self._limit_memory()

    def _follow_links(self) -> None:
        """Ways through the parts, forward and back, along the messages there are."""
        for (q, p), linked in self.linked.items():
            there = self.delay(q, p)
            ratio = self.draft[p].micro_batch_size / self.draft[q].micro_batch_size
            ahead = self.seconds(q, "forward_s", max(1.0, ratio))
            self._if(linked, self.heads[p] >= self.heads[q] + ahead + there)
            self._if(linked, self.lasts[p] >= self.lasts[q] + self.f[q] + there)
        for (q, p), returning in self.returning.items():
            there, back = self.delay(q, p), self.delay(p, q)
            tasks = max(1.0, self.draft[q].micro_batch_size / self.draft[p].micro_batch_size)
            turn = self.seconds(p, "seconds", tasks)
            self._if(returning, self.tails[p] >= self.tails[q] + self.b[q] + back)
            self._if(returning, self.arounds[q] >= there + turn + self.arounds[p] + back)
            self._if(returning, self.ends[q] >= self.ends[p] + back + self.b[q])

    def _if(self, literal: Literal, row: Any) -> None:
        constraint = self.model.add(row)
        if literal is not True:
            constraint.only_enforce_if(literal)

    def _limit_loads(self) -> None:
        """Parts on the same devices add up, and so does the busiest device's step."""
        loads: dict[tuple[int, ...], Any] = {}
        for p, part in enumerate(self.draft):
            share = self.seconds(p, "seconds", self.batch / part.micro_batch_size)
            loads[part.devices] = loads.get(part.devices, 0) + share
        for p, part in enumerate(self.draft):
            self.model.add(self.spans[p] >= loads[part.devices])
            closing = self.seconds(p, "closing_s")
            self.model.add(self.busiest >= loads[part.devices] + closing)
            self.model.add(self.step >= self.ends[p] + closing)
            self.model.add(self.step >= self.ends[p] + self.tails[p])

    def _span_part(self, p: int) -> None:
        """First forward to last backward, with the idle time that too few in flight leave."""
        model, part = self.model, self.draft[p]
        num, around = self.batch // part.micro_batch_size, self.arounds[p]
        ahead = min(num, self.in_flight[p]) - 1
        idles = [model.new_int_var(0, 8 * UNITS, "") for _ in range(2)]
        model.add(idles[0] >= around - self.seconds(p, "forward_s", ahead))
        model.add(idles[1] >= around - self.seconds(p, "backward_s", ahead))
        alone = self.seconds(p, "seconds", num)
        if num > ahead + 1:
            model.add(self.spans[p] >= alone + idles[0] + idles[1])
            slow = self.seconds(p, "seconds", num / (ahead + 1))
            rounds = round(num / (ahead + 1))
            model.add(self.step >= self.heads[p] + slow + rounds * around)
        else:
            model.add(self.spans[p] >= alone + idles[0])
            model.add(self.spans[p] >= alone + idles[1])
        start, turn = self.heads[p], self.f[p] + self.b[p]
        model.add(self.lasts[p] >= start + self.seconds(p, "forward_s", num - 1))
        model.add(self.lasts[p] >= start + self.spans[p] - around - turn)
        model.add(self.ends[p] >= self.lasts[p] + turn + around)

    @cached_property
    def in_flight(self) -> list[int]:
        """Micro-batches in flight of every part of the draft."""
        part_of = self.part_of
        after: list[set[int]] = [set() for _ in self.draft]
        for flow in self.problem.flows:
            if flow.owner is not None and flow.needs_grad:
                after[part_of[flow.owner]] |= {part_of[reader] for reader in flow.readers}
        sizes = [part.micro_batch_size for part in self.draft]
        samples = count_in_flight(sizes, [sorted(a - {p}) for p, a in enumerate(after)])
        return [min(self.batch, n) // size for n, size in zip(samples, sizes, strict=True)]

    def _limit_channels(self, period_s: float) -> None:
        """The busiest channel is not slower than the whole step, less what the ends take now."""
        busy: dict[str, Any] = {}
        for (q, p), sent in self.bytes.items():
            src, dst = self.draft[q], self.draft[p]
            if src.devices == dst.devices:
                continue
            for channel, seconds in self.appraiser.way(src.devices, dst.devices).channels:
                factor = self.batch / src.micro_batch_size * seconds / self.unit_s
                busy[channel] = busy.get(channel, 0) + _weigh(sent, factor)
        rest = max(0, UNITS - round(self.batch * period_s / self.unit_s))
        for total in busy.values():
            self.model.add(self.step >= total + rest // 2)

    def _limit_memory(self) -> None:
        """What a device holds fits, where that is in question."""
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for p, part in enumerate(self.draft):
            groups[part.devices].append(p)
        for devices, hosted in groups.items():
            room = self.appraiser.room(devices)
            held = [self.amount(p, self._weigh_part(p), MEMORY_UNITS / room) for p in hosted]
            now = sum(
                round(self._weigh_part(p)(self.prices[p]) * MEMORY_UNITS / room) for p in hosted
            )
            if not all(isinstance(each, int) for each in held):
                self.model.add(sum(held) <= max(now, MEMORY_UNITS))

    def _weigh_part(self, p: int) -> Callable[[PartPrice], float]:
        """Bytes by price; the workspace of parts that share devices is counted for each."""
        flying = self.in_flight[p]
        return lambda price: price.fixed_bytes + flying * price.saved_bytes + price.workspace_bytes


NOTHING = PartPrice(
    forward_s=0.0,
    backward_s=0.0,
    returning_s=0.0,
    closing_s=0.0,
    fixed_bytes=0,
    saved_bytes=0,
    workspace_bytes=0,
    trains=False,
)


def _weigh(sent: Sequence[tuple[Literal, int]], factor: float) -> Any:
    total: Any = 0
    for literal, num_bytes in sent:
        total += round(num_bytes * factor) * literal
    return total


def _negate(literal: Literal) -> list[Literal]:
    """For a clause: nothing if the literal is a true constant."""
    return [] if literal is True else [literal.negated()]


def _keep(literal: Literal) -> list[Literal]:
    """For a clause: nothing if the literal is a false constant."""
    return [] if literal is False else [literal]


def sort_draft(problem: Problem, draft: Draft) -> Draft:
    """The parts of a draft in a topological order, the one with the earliest node first."""
    part_of = {node: p for p, part in enumerate(draft) for node in part.nodes}
    before: list[set[int]] = [set() for _ in draft]
    for src, dst in problem.edges:
        if part_of[src] != part_of[dst]:
            before[part_of[dst]].add(part_of[src])
    rest = sorted(range(len(draft)), key=lambda p: draft[p].nodes)
    order: list[int] = []
    while rest:
        ready = next((p for p in rest if before[p] <= set(order)), None)
        if ready is None:
            return draft
        order.append(ready)
        rest.remove(ready)
    return tuple(draft[p] for p in order)
