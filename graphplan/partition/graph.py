"""The `graph` planner: any DAG, stages in any grouping, judged by the evaluated step time.

1. The graph is folded and decomposed; a dynamic program over the modules proposes drafts for the
   most promising micro-batch sizes and device units (candidates.py, treesearch.py).
2. Answers of other planners join them (seeds.py), so that none of them is better.
3. A local search climbs from the best of both and wanders on from what it found (localsearch.py).
4. CP-SAT moves the borders of the best drafts, all at once (polish.py).

What it spends is counted, not timed: the time limit only ends searches that would go on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from graphplan.cost.model import CostModel
from graphplan.errors import InvalidOption
from graphplan.nouns.problem import Problem
from graphplan.nouns.stages import StageGraph
from graphplan.partition.answer import Answer, Request
from graphplan.partition.appraise import Appraiser
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.partition.candidates import Candidate, CandidateSearch
from graphplan.partition.choose import Chooser
from graphplan.partition.decompose import find_primes
from graphplan.partition.localsearch import Budget, LocalSearch, canonical
from graphplan.partition.polish import polish_draft
from graphplan.partition.scene import Draft, is_legal_draft
from graphplan.partition.seeds import ask_planners, make_draft
from graphplan.partition.work import measure_times

MAX_ITEMS = 64
"""Items of a chain in the dynamic program."""
MAX_SETTINGS = 10
"""Micro-batch sizes and device units that it tries."""
MAX_ENRICHED, ENRICH_FROM_S = 4, 8.0
"""Of these, with more cuts of large prime modules, and the time limit from which on."""
NUM_CANDIDATES = 12
"""Of its drafts are evaluated, and the best one of every micro-batch size."""
NUM_CLIMBED = 6
"""Drafts that the local search climbs from."""
NUM_KEPT = 4
"""Best drafts from which it wanders off."""
PATIENCE = 30
"""Wanderings in a row without a better draft after which it ends."""
NUM_POLISHED = 3
"""Best drafts that are polished."""
DONE_GAP = 0.001
"""Distance from the lower bound at which a search ends."""
APPRAISING_S, EVALUATING_S = 1.0, 0.7
"""About what the local search may take, on a computer of 2024."""


def solve(problem: Problem, request: Request) -> Answer:
    """The best stage graph found."""
    search = GraphSearch(problem, request)
    with search.chooser.keep_best():
        search.run()
    return search.chooser.make_answer(note=search.note)


class GraphSearch:
    """One search; the chooser keeps the best stage graph."""

    def __init__(self, problem: Problem, request: Request) -> None:
        self.problem, self.request = problem, request
        self.chooser = Chooser(problem, request, solver="graph")
        self.cost = CostModel(problem)
        self.appraiser = Appraiser(self.cost)
        self.times = measure_times(problem)
        self.step_by_draft: dict[frozenset[Part], float] = {}
        self.note = ""

    def run(self) -> None:
        """Propose, evaluate, improve."""
        drafts = self._take(list(self.request.known.values()))
        drafts += self._propose()
        drafts += self._take(ask_planners(self.problem, self.request))
        ranked = sorted((self.evaluate(draft), i) for i, draft in enumerate(drafts))
        if ranked:
            self._improve([drafts[i] for _, i in ranked])

    def evaluate(self, draft: Draft) -> float:
        """Step seconds of a draft, remembered."""
        key = canonical(draft)
        if key not in self.step_by_draft:
            self.step_by_draft[key] = self._consider(assemble_stages(self.problem, draft))
        return self.step_by_draft[key]

    def _consider(self, stages: StageGraph) -> float:
        try:
            return self.chooser.consider(stages)
        except InvalidOption:  # no order of the stages that share devices was found
            return math.inf

    def is_done(self) -> bool:
        """Whether the time is up, or nothing is left to gain."""
        return self.chooser.is_late() or self.chooser.is_close(DONE_GAP)

    # -- drafts ----------------------------------------------------------------------------------

    def _take(self, answers: Iterable[Answer]) -> list[Draft]:
        """The drafts of answers, as far as moves can start from them."""
        drafts = []
        for answer in answers:
            self.chooser.keep(answer.stages, answer.step_s)
            draft = make_draft(self.cost, answer.stages)
            if is_legal_draft(self.problem, draft):
                drafts.append(draft)
        return drafts

    def _propose(self) -> list[Draft]:
        """The best drafts of the dynamic program, by their appraisal, some of every size."""
        if self.is_done():
            return []
        search = CandidateSearch(
            self.cost,
            self.appraiser,
            self.times,
            max_items=MAX_ITEMS,
            max_settings=MAX_SETTINGS,
            max_enriched=MAX_ENRICHED if self.request.time_limit_s >= ENRICH_FROM_S else 0,
            is_late=self.chooser.is_late,
        )
        primes = len(find_primes(search.tree))
        self.note = f"{primes} prime modules" if primes else "series-parallel"
        found: dict[frozenset[Part], Candidate] = {}
        for candidate in search.run():
            found.setdefault(canonical(candidate.draft), candidate)
        ranked = sorted(found.values(), key=lambda each: each.step_s)
        first_by_size: dict[int, Candidate] = {}
        for candidate in ranked:
            first_by_size.setdefault(candidate.draft[0].micro_batch_size, candidate)
        chosen = [*ranked[:NUM_CANDIDATES], *first_by_size.values()]
        return list({canonical(each.draft): each.draft for each in chosen}.values())

    # -- local search ----------------------------------------------------------------------------

    def _improve(self, ranked: list[Draft]) -> None:
        """Climb from several drafts, then from the surroundings of the best."""
        budget = self._allot(len(ranked[0]))
        search = LocalSearch(self.appraiser, self.times.work, self.evaluate, self.is_done, budget)
        pool: dict[frozenset[Part], tuple[float, Draft]] = {}
        for draft in _choose_starts(ranked):
            found, step_s = search.climb(draft)
            pool[canonical(found)] = (step_s, found)
        words = random.Random(self.request.seed)
        misses = 0
        while not search.is_over() and misses < PATIENCE:
            least_s = self.chooser.step_s
            best = sorted(pool.values(), key=lambda each: each[0])[:NUM_KEPT]
            start = best[min(words.randrange(len(best)), words.randrange(len(best)))][1]
            away = search.wander(start, words, num_moves=words.randint(1, 4))
            found, step_s = search.climb(away)
            pool[canonical(found)] = (step_s, found)
            misses = 0 if self.chooser.step_s < least_s else misses + 1
        best = sorted(pool.values(), key=lambda each: each[0])
        self._polish([draft for _, draft in best if len(draft) > 1])

    def _polish(self, ranked: list[Draft]) -> None:
        """Move the borders of the best drafts."""
        for draft in ranked[:NUM_POLISHED]:
            if self.is_done():
                return
            polish_draft(
                self.appraiser,
                self.times.work,
                draft,
                self.evaluate,
                seconds_left=lambda: self.request.seconds_left,
                seed=self.request.seed,
            )

    def _allot(self, num_parts: int) -> Budget:
        """A budget that takes about equally long whatever the size of the problem."""
        appraisal_s = 2e-6 * len(self.problem.flows) + 2e-5 * num_parts + 8e-5
        evaluation_s = 1e-5 * len(self.problem.flows) + 4e-4 * num_parts + 1e-3
        size = self.problem.num_nodes + len(self.problem.cluster.devices)
        return Budget(
            num_appraisals=min(500 * size, max(60, int(APPRAISING_S / appraisal_s))),
            num_evaluations=min(60 * size, max(12, int(EVALUATING_S / evaluation_s))),
        )


def _choose_starts(ranked: list[Draft]) -> list[Draft]:
    """The best draft, then the best ones with other micro-batch sizes, then the next best."""
    first_by_size: dict[int, Draft] = {}
    for draft in ranked:
        first_by_size.setdefault(draft[0].micro_batch_size, draft)
    return list(dict.fromkeys([*first_by_size.values(), *ranked]))[:NUM_CLIMBED]
