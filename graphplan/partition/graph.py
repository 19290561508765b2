"""The `graph` planner: any DAG, stages in any grouping, judged by the evaluated step time.

1. The graph is folded and decomposed; a dynamic program over the modules proposes drafts for the
   most promising micro-batch sizes and device units (candidates.py, treesearch.py).
2. Answers of other planners join them (seeds.py), so that none of them is better.
3. A local search climbs from the best of both and wanders on from what it found (localsearch.py).
   It goes by appraisals of what a searched schedule can do; where the schedule is 1F1B, or the
   stages are too many to rehearse, by evaluations.
4. CP-SAT moves the borders of the best drafts, all at once (polish.py).
5. The best are rehearsed with the orders that the schedule may choose, and the search climbs on by
   what the rehearsals say (finals.py).

What it spends is counted, not timed: more for longer time limits, which else only end searches
that would go on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from graphplan.cost.model import CostModel
from graphplan.errors import InvalidOption
from graphplan.nouns.problem import Problem
from graphplan.nouns.stages import StageGraph
from graphplan.partition.answer import Answer, Request
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.partition.choose import Chooser
from graphplan.partition.dag.decompose import find_primes
from graphplan.partition.dag.work import measure_times
from graphplan.partition.drafts.appraise import Appraiser
from graphplan.partition.drafts.finals import choose_finalists, count_rehearsals
from graphplan.partition.drafts.localsearch import (
    Budget,
    Evaluate,
    LocalSearch,
    canonical,
    search_around,
)
from graphplan.partition.drafts.polish import polish_draft
from graphplan.partition.drafts.scene import Draft, is_legal_draft
from graphplan.partition.drafts.seeds import ask_planners, make_draft
from graphplan.partition.trees.candidates import Candidate, CandidateSearch

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
NUM_POLISHED = 3
"""Best drafts that are polished."""
DONE_GAP = 0.001
"""Distance from the lower bound at which a search ends."""
PROPOSED_UNTIL, ASKED_UNTIL, IMPROVED_UNTIL = 0.3, 0.42, 0.7
"""Shares of the time limit at which the first three phases end if they did not end before."""
APPRAISING_S, EVALUATING_S, REHEARSING_S = 1.0, 0.7, 1.5
"""About what the local search and the rehearsals may take on a computer of 2024, with a time limit
of `USUAL_S` or less; more in proportion with longer ones."""
USUAL_S = 5.0


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
        self.relaxed = Appraiser(self.cost, relaxed=True)
        self.times = measure_times(problem)
        self.step_by_draft: dict[frozenset[Part], float] = {}
        self.rehearsed_by_draft: dict[frozenset[Part], float] = {}
        self.proposed: list[Draft] = []
        """By the dynamic program, also those that were not evaluated."""
        self.judged: dict[Draft, float] = {}
        self.until = PROPOSED_UNTIL
        """Share of the time at which the present phase ends."""
        self.effort = max(1.0, request.time_limit_s / USUAL_S)
        self.note = ""

    def run(self) -> None:
        """Propose, evaluate, improve."""
        drafts = self._take(list(self.request.known.values()))
        drafts += self._propose()
        self.until = ASKED_UNTIL
        drafts += self._take(ask_planners(self.problem, self.request, until=self.until))
        ranked = sorted((self.evaluate(draft), i) for i, draft in enumerate(drafts))
        if not ranked:
            return
        self.until = 1.0
        num_rehearsals = self._count_rehearsals()
        if num_rehearsals:
            self.until = IMPROVED_UNTIL
            known = dict.fromkeys([*drafts, *self.proposed])
            self._improve(self.relaxed, self.judge, sorted(known, key=self.judge))
            self.until = 1.0
            self._rehearse_best(num_rehearsals)
        else:
            self._improve(self.appraiser, self.evaluate, [drafts[i] for _, i in ranked])

    def _count_rehearsals(self) -> int:
        if self.request.rehearse is None or self.chooser.best is None:
            return 0
        seconds = REHEARSING_S * self.effort
        batch_size = self.problem.training.batch_size
        return count_rehearsals(self.chooser.best, batch_size, seconds=seconds)

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
        """Whether the time of the phase is up, or nothing is left to gain."""
        return self.is_late() or self.chooser.is_close(DONE_GAP)

    def is_late(self) -> bool:
        """Whether the time of the phase is up."""
        return self.seconds_left() <= 0

    def seconds_left(self) -> float:
        """Of the phase."""
        return (self.request.share_left - (1 - self.until)) * self.request.time_limit_s

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
            is_late=self.is_late,
        )
        primes = len(find_primes(search.tree))
        self.note = f"{primes} prime modules" if primes else "series-parallel"
        found: dict[frozenset[Part], Candidate] = {}
        for candidate in search.run():
            found.setdefault(canonical(candidate.draft), candidate)
        self.proposed = [candidate.draft for candidate in found.values()]
        ranked = sorted(found.values(), key=lambda each: each.step_s)
        first_by_size: dict[int, Candidate] = {}
        for candidate in ranked:
            first_by_size.setdefault(candidate.draft[0].micro_batch_size, candidate)
        chosen = [*ranked[:NUM_CANDIDATES], *first_by_size.values()]
        return list({canonical(each.draft): each.draft for each in chosen}.values())

    # -- local search ----------------------------------------------------------------------------

    def _improve(self, appraiser: Appraiser, evaluate: Evaluate, ranked: list[Draft]) -> None:
        """Climb from several drafts, then from the surroundings of the best; polish these."""
        budget = self._allot(len(ranked[0]), judged=appraiser.relaxed)
        search = LocalSearch(appraiser, self.times.work, evaluate, self.is_done, budget)
        found = search_around(search, _choose_starts(ranked), seed=self.request.seed)
        self._polish(appraiser, evaluate, found[:NUM_POLISHED])

    def _polish(self, appraiser: Appraiser, evaluate: Evaluate, drafts: list[Draft]) -> None:
        """Move the borders of drafts, all at once."""
        for draft in drafts:
            if self.is_done():
                return
            polish_draft(
                appraiser,
                self.times.work,
                draft,
                evaluate,
                seconds_left=self.seconds_left,
                seed=self.request.seed,
            )

    def _rehearse_best(self, count: int) -> None:
        """Rehearse the drafts that were judged best, then climb from the best of those."""
        steps: dict[Draft, float] = {}
        for draft in choose_finalists(self.judged, count // 3):
            if self.is_done():
                return
            steps[draft] = self.rehearse(draft)
        budget = Budget(num_appraisals=150 * count, num_evaluations=count - count // 3)
        search = LocalSearch(self.relaxed, self.times.work, self.rehearse, self.is_done, budget)
        for draft in sorted(steps, key=lambda draft: steps[draft])[:NUM_CLIMBED]:
            if not search.is_over():
                search.climb(draft)

    def judge(self, draft: Draft) -> float:
        """Step seconds by a relaxed appraisal, remembered; infinity when a draft does not fit."""
        if draft not in self.judged:
            appraisal = self.relaxed.appraise(draft)
            fits = appraisal is not None and not appraisal.excess_bytes
            self.judged[draft] = appraisal.step_s if appraisal and fits else math.inf
        return self.judged[draft]

    def rehearse(self, draft: Draft) -> float:
        """Step seconds of a draft under the order that suits it best, remembered."""
        assert self.request.rehearse is not None
        key = canonical(draft)
        if key not in self.rehearsed_by_draft:
            stages = assemble_stages(self.problem, draft)
            self.rehearsed_by_draft[key] = self.request.rehearse(stages)
            self.chooser.keep(stages, self.rehearsed_by_draft[key])
        return self.rehearsed_by_draft[key]

    def _allot(self, num_parts: int, *, judged: bool) -> Budget:
        """A budget that takes about equally long whatever the size of the problem; drafts that are
        judged cost appraisals only."""
        appraisal_s = 2e-6 * len(self.problem.flows) + 2e-5 * num_parts + 8e-5
        evaluation_s = 1e-5 * len(self.problem.flows) + 4e-4 * num_parts + 1e-3
        size = self.problem.num_nodes + len(self.problem.cluster.devices)
        appraising_s = self.effort * (APPRAISING_S + (EVALUATING_S if judged else 0.0))
        evaluating_s = self.effort * EVALUATING_S
        num_appraisals = min(500 * size, max(60, int(appraising_s / appraisal_s)))
        num_evaluations = min(60 * size, max(12, int(evaluating_s / evaluation_s)))
        return Budget(num_appraisals, num_appraisals if judged else num_evaluations)


def _choose_starts(ranked: list[Draft]) -> list[Draft]:
    """The best draft, then the best ones with other micro-batch sizes, then the next best."""
    first_by_size: dict[int, Draft] = {}
    for draft in ranked:
        first_by_size.setdefault(draft[0].micro_batch_size, draft)
    return list(dict.fromkeys([*first_by_size.values(), *ranked]))[:NUM_CLIMBED]
