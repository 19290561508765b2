"""Improving drafts, in rounds: a local search by appraisals, then one by judgements.

An appraisal takes a hundredth of a judgement and is about right, so it may look far; a judgement is
what counts, so it has the last word:

    starts --climb, wander, climb (appraised)--> ends --judge the best--> finalists --climb (judged)
       ^                                                                                   |
       '------------------------------- the next round starts from the best <--------------'

Where orders are not searched for, or the judgement is no step time, appraisals only order the moves
and every draft that looks better is judged. What a round may spend is fixed by the size of the
problem; the effort says how many rounds there are. So a search with more effort begins like one
with less, and never has fewer drafts to choose from.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Generator, Mapping, Sequence

import msgspec

from graphplan.cost.model import CostModel
from graphplan.nouns.problem import Problem
from graphplan.partition.assemble import Draft, Part
from graphplan.partition.drafts.appraise import Appraiser
from graphplan.partition.drafts.localsearch import (
    Budget,
    LocalSearch,
    Values,
    canonical,
    search_around,
)
from graphplan.partition.drafts.scene import is_legal_draft
from graphplan.partition.proposal import Proposals, Wish

NUM_ROUNDS = 5
"""Rounds for an effort of 1."""
NUM_CLIMBED = 6
"""Drafts that an appraised search climbs from."""
NUM_RETURNED = 3
"""Drafts that a judged search climbs from, and the best drafts with which a round starts."""
APPRAISED_WORK = 500_000
"""Units that an appraised search may spend; a unit is about a microsecond on a computer of 2024."""
JUDGED_WORK = 1_000_000
"""The same for a judged one."""
TASK_WORK, MOST_JUDGED, LEAST_JUDGED = 8, 40, 12
"""Units that a task adds to a judgement; the most and the fewest drafts that a round judges."""
APPRAISALS_PER_JUDGEMENT = 40
"""What the judged search may look at for each draft that it may propose."""
NUM_FURTHER = 24
"""Micro-batches of a judgement beyond the depth of the pipeline."""


def improve_drafts(cost: CostModel, wish: Wish, starts: Sequence[Draft]) -> Proposals:
    """Better drafts than these."""
    improver = Improver(cost, wish, starts)
    if improver.starts:
        for number in range(wish.scale(NUM_ROUNDS)):
            yield from improver.play_round(number)
    return ""


class Improver:
    """What the rounds have in common: all that was appraised and judged."""

    def __init__(self, cost: CostModel, wish: Wish, starts: Sequence[Draft]) -> None:
        self.cost, self.work = cost, cost.mean_times.work
        self.appraiser = Appraiser(cost, relaxed=wish.searched and wish.is_step)
        self.rng = random.Random(wish.seed)
        self.starts = [
            draft
            for draft in dict.fromkeys(starts)
            if is_legal_draft(cost.problem, draft) and self.appraiser.appraise(draft) is not None
        ]
        self.step_by_draft: dict[Draft, float] = {}
        """Appraised step seconds, infinity for what does not fit."""
        self.judged: dict[Draft, float] = {}
        self.climbed: set[frozenset[Part]] = set()

    def play_round(self, number: int) -> Generator[Draft | None, float, None]:
        """One round; the first one starts from what the planners proposed."""
        known = self.starts if number == 0 else self._rank_judged()
        if not known:
            return
        num_judged = count_judgements(self.cost.problem, known[0])
        if self.appraiser.relaxed:
            yield from self._look_around(known, first=number == 0)
            untried = {d: s for d, s in self.step_by_draft.items() if d not in self.judged}
            for draft in (*known[:1], *choose_finalists(untried, max(2, num_judged // 3))):
                yield from self._judge(draft)
        else:
            for draft in choose_starts(known):
                yield from self._judge(draft)
        budget = Budget(APPRAISALS_PER_JUDGEMENT * num_judged, num_judged)
        search = LocalSearch(self.appraiser, self.work, self._judge, budget)
        for draft in self._rank_judged()[:NUM_RETURNED]:
            if canonical(draft) in self.climbed:
                draft = search.wander(draft, self.rng, num_moves=self.rng.randint(1, 3))
            found, _ = yield from search.climb(draft)
            self.climbed |= {canonical(draft), canonical(found)}

    def _look_around(
        self, known: Sequence[Draft], *, first: bool
    ) -> Generator[Draft | None, float, None]:
        """The appraised search; later rounds start from the best judged drafts."""
        ranked = sorted(known, key=self._measure)
        starts = choose_starts(ranked) if first else list(known[:NUM_RETURNED])
        budget = self._count_appraisals(len(starts[0]))
        search = LocalSearch(self.appraiser, self.work, self._value, budget)
        yield from search_around(search, starts, seed=self.rng.getrandbits(32))

    def _judge(self, draft: Draft) -> Values:
        """The judgement of a draft, which is asked for once."""
        if draft not in self.judged:
            self.judged[draft] = yield draft
        return self.judged[draft]

    def _rank_judged(self) -> list[Draft]:
        """The judged drafts that fit, the best first."""
        fitting = [draft for draft, step_s in self.judged.items() if step_s < math.inf]
        return sorted(fitting, key=lambda draft: self.judged[draft])

    def _measure(self, draft: Draft) -> float:
        """Step seconds of a draft by its appraisal."""
        if draft not in self.step_by_draft:
            appraisal = self.appraiser.appraise(draft)
            fits = appraisal is not None and not appraisal.excess_bytes
            self.step_by_draft[draft] = appraisal.step_s if appraisal and fits else math.inf
        return self.step_by_draft[draft]

    def _value(self, draft: Draft) -> Values:
        """The same for a local search, without a proposal."""
        yield from ()
        return self._measure(draft)

    def _count_appraisals(self, num_parts: int) -> Budget:
        """A budget that takes about equally long whatever the size of the problem."""
        problem = self.cost.problem
        units = 2 * len(problem.flows) + 20 * num_parts + 80
        size = problem.num_nodes + len(problem.cluster.devices)
        count = min(150 * size, max(60, APPRAISED_WORK // units))
        return Budget(count, count)


def count_judgements(problem: Problem, draft: Draft) -> int:
    """Judgements of drafts like this one that a round is worth."""
    batch = problem.training.batch_size
    longest = max(part.micro_batch_size for part in draft) * (len(draft) + NUM_FURTHER)
    num_tasks = sum(3 * min(batch, longest) // part.micro_batch_size for part in draft)
    return max(LEAST_JUDGED, min(MOST_JUDGED, JUDGED_WORK // (TASK_WORK * num_tasks)))


def choose_starts(ranked: Sequence[Draft]) -> list[Draft]:
    """The best draft, then the best ones with other micro-batch sizes, then the next best."""
    first_by_size: dict[int, Draft] = {}
    for draft in ranked:
        first_by_size.setdefault(draft[0].micro_batch_size, draft)
    return list(dict.fromkeys([*first_by_size.values(), *ranked]))[:NUM_CLIMBED]


def choose_finalists(step_by_draft: Mapping[Draft, float], count: int) -> list[Draft]:
    """The best drafts: half of them whatever they are, then the best one of every micro-batch size
    and number of device groups."""
    fitting = [draft for draft, step_s in step_by_draft.items() if step_s < math.inf]
    ranked = sorted(fitting, key=lambda draft: step_by_draft[draft])
    first_by_kind: dict[tuple[int, int], Draft] = {}
    for draft in ranked:
        groups = {part.devices for part in draft}
        first_by_kind.setdefault((draft[0].micro_batch_size, len(groups)), draft)
    chosen = dict.fromkeys([*ranked[: (count + 1) // 2], *first_by_kind.values(), *ranked])
    return list(chosen)[:count]


def simplify_draft(cost: CostModel, draft: Draft, limit_s: float) -> Proposals:
    """The draft with parts merged that have the same devices, as long as it keeps the limit."""
    again = True
    while again:
        again = False
        for merged in _list_merged(draft):
            if Appraiser(cost).appraise(merged) is None:
                continue
            if (yield merged) <= limit_s:
                draft, again = merged, True
                break
    return ""


def _list_merged(draft: Draft) -> Generator[Draft, None, None]:
    """The draft with two parts as one, for all pairs that are alike but for their nodes."""
    for p, q in itertools.combinations(range(len(draft)), 2):
        a, b = draft[p], draft[q]
        both = msgspec.structs.replace(a, nodes=tuple(sorted((*a.nodes, *b.nodes))))
        if msgspec.structs.replace(b, nodes=both.nodes) == both:
            yield (*(each for i, each in enumerate(draft) if i not in (p, q)), both)
