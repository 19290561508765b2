"""A contest: planners propose drafts, one judge judges them, and the best are kept.

The contest drives the planners (partition/proposal.py) and yields at every draft and sign of life,
so that whoever reads it may stop between any two of them and still has the best so far.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Iterable, Iterator, Sequence

from graphplan.cost.model import CostModel
from graphplan.errors import InvalidOption, NoFeasiblePlan, SearchLimit
from graphplan.nouns.plan import Bound
from graphplan.nouns.stages import StageGraph
from graphplan.partition import propose_drafts
from graphplan.partition.assemble import Draft, assemble_stages
from graphplan.partition.bounds.bound import bound_step
from graphplan.partition.memory import choose_sharing
from graphplan.partition.pins import refuse_pins
from graphplan.partition.proposal import Proposals, Wish
from graphplan.partition.remedy import explain_infeasible
from graphplan.planner.judge import Judge, Judging
from graphplan.planner.options import SearchOptions

NEARLY = 0.1
"""How much longer the step of an alternative may be: another order may make it the best."""
TIE = 0.001
"""Steps that differ by no more count as equal, and the simpler plan wins."""
DONE_GAP = 0.001
"""Distance from the lower bound at which nothing is left to find."""
MAX_ALTERNATIVES = 4


class Shortlist:
    """The best of the judged stage graphs, of all and of every kind."""

    def __init__(self) -> None:
        self.draft_by_stages: dict[StageGraph, Draft] = {}
        self.step_by_stages: dict[StageGraph, float] = {}
        """What fits, in the order in which it was judged."""
        self.num_judged = 0
        self.note = ""

    def keep(self, draft: Draft, stages: StageGraph, step_s: float) -> None:
        """Take note of a judgement."""
        self.num_judged += 1
        if step_s < math.inf:
            self.draft_by_stages.setdefault(stages, draft)
            self.step_by_stages.setdefault(stages, step_s)

    @property
    def step_s(self) -> float:
        """The best judgement."""
        return min(self.step_by_stages.values(), default=math.inf)

    @property
    def best(self) -> StageGraph | None:
        """The simplest of those that are as good as the best."""
        ranked = self.rank()
        return ranked[0] if ranked else None

    def rank(self) -> list[StageGraph]:
        """All of them: those as good as the best first, with the fewest stages, then by time."""
        limit_s = self.step_s * (1 + TIE)

        def weigh(stages: StageGraph) -> tuple[bool, int, float]:
            step_s = self.step_by_stages[stages]
            return step_s > limit_s, len(stages.stages) if step_s <= limit_s else 0, step_s

        return sorted(self.step_by_stages, key=weigh)

    def list_finalists(self) -> list[StageGraph]:
        """The best, and the best of other kinds as far as they are nearly as good: with or without
        shared devices, other micro-batch sizes. The schedule decides among them."""
        first_by_kind: dict[tuple[bool, int], StageGraph] = {}
        limit_s = self.step_s * (1 + NEARLY)
        ranked = [each for each in self.rank() if self.step_by_stages[each] <= limit_s]
        for stages in ranked:
            groups = {stage.devices for stage in stages.stages}
            kind = (len(groups) < len(stages.stages), stages.stages[0].micro_batch_size)
            first_by_kind.setdefault(kind, stages)
        fastest = sorted(ranked, key=lambda each: self.step_by_stages[each])[:1]
        chosen = dict.fromkeys([*ranked[:1], *fastest, *first_by_kind.values()])
        return list(chosen)[: MAX_ALTERNATIVES + 1]

    def list_drafts(self) -> list[Draft]:
        """Drafts of all of them, the best first."""
        return [self.draft_by_stages[stages] for stages in self.rank()]


class Contest:
    """Planners whose drafts are judged alike; each is asked once."""

    def __init__(
        self,
        cost: CostModel,
        options: SearchOptions,
        *,
        judge: Judging | None = None,
        bound: Bound | None = None,
    ) -> None:
        self.cost, self.options = cost, options
        self.judge: Judging = judge or Judge(cost, options)
        self.bound = bound or bound_step(cost.problem)
        self.shortlist_by_planner: dict[str, Shortlist] = {}
        self.wish = Wish(
            effort=options.effort,
            seed=options.seed,
            searched=self.judge.searched,
            is_step=self.judge.is_step,
        )

    def ask(self, planner: str) -> Iterator[None]:
        """Let a planner propose until it has nothing more to say.

        Only a planner that the user named spends the user's effort. What is asked besides has
        amounts of its own: moves then start from the same drafts whatever the effort, and more
        rounds of them only add to what fewer find.
        """
        if planner not in self.shortlist_by_planner:
            named = planner == self.options.planner
            wish = self.wish if named else dataclasses.replace(self.wish, effort=1.0)
            proposals = propose_drafts(self.cost, planner, wish)
            yield from self.drive(planner, proposals, whole=True)

    def drive(self, name: str, proposals: Proposals, *, whole: bool = False) -> Iterator[None]:
        """Judge proposals, under this name, until they end or, unless they are wanted as a whole,
        nothing is left to gain."""
        shortlist = self.shortlist_by_planner.setdefault(name, Shortlist())
        answer = 0.0
        try:
            draft = next(proposals)
            while True:
                if draft is not None:
                    answer = self.consider(shortlist, draft)
                yield
                if not whole and self.is_done(shortlist):
                    proposals.close()
                    return
                draft = proposals.send(answer if draft is not None else 0.0)
        except StopIteration as end:
            shortlist.note = end.value or shortlist.note

    def consider(self, shortlist: Shortlist, draft: Draft) -> float:
        """Judge a draft and keep it."""
        stages = choose_sharing(self.cost, assemble_stages(self.cost.problem, draft))
        step_s = self.judge.judge(stages)
        shortlist.keep(draft, stages, step_s)
        return step_s

    def is_done(self, shortlist: Shortlist) -> bool:
        """Whether the bound says that nothing better is left."""
        bound_s = self.bound.step_s
        close = bound_s * (1 - 1e-9) <= shortlist.step_s <= bound_s * (1 + DONE_GAP)
        return self.judge.is_step and close

    def merge(self, planners: Iterable[str] | None = None) -> Shortlist:
        """What these planners, or all that were asked, have found."""
        merged = Shortlist()
        names = self.shortlist_by_planner if planners is None else planners
        for name in names:
            found = self.shortlist_by_planner.get(name)
            if found is not None:
                merged.num_judged += found.num_judged
                for stages, step_s in found.step_by_stages.items():
                    merged.draft_by_stages.setdefault(stages, found.draft_by_stages[stages])
                    merged.step_by_stages.setdefault(stages, step_s)
                merged.note = merged.note or found.note
        return merged

    def refuse(self, shortlist: Shortlist) -> InvalidOption | NoFeasiblePlan | SearchLimit:
        """The error for planners that found nothing that fits."""
        problem, planner = self.cost.problem, self.options.planner
        if problem.pins and not shortlist.num_judged:
            return refuse_pins(problem, planner)
        return explain_infeasible(problem, policy=self.options.make_policy(), planner=planner)


def run_through(steps: Generator[None, None, None] | Iterator[None]) -> None:
    """Let a contest go on to its end."""
    for _ in steps:
        pass


def pick_starts(shortlists: Sequence[Shortlist], *, count: int) -> list[Draft]:
    """The best drafts of several planners, the best of all first, the best of each of them in."""
    own = [draft for each in shortlists for draft in each.list_drafts()[:count]]
    value = {
        each.draft_by_stages[stages]: step_s
        for each in shortlists
        for stages, step_s in each.step_by_stages.items()
    }
    return sorted(dict.fromkeys(own), key=lambda draft: value.get(draft, math.inf))
