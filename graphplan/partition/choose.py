"""Choosing: candidates are evaluated one by one and the best is kept, whatever happens next."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

from graphplan.cost.model import CostModel
from graphplan.nouns.problem import Problem
from graphplan.nouns.stages import StageGraph
from graphplan.partition.answer import Answer, Request
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.partition.bounds.bound import bound_step
from graphplan.partition.memory import choose_recompute
from graphplan.partition.pins import apply_pins, refuse_pins
from graphplan.partition.remedy import explain_infeasible

NEARLY = 0.1
"""How much longer a step of an alternative may be."""
FARTHER = 0.2
"""The same for answers of other planners."""
MAX_ALTERNATIVES = 3


class Chooser:
    """The best of the parts offered so far, with the bound that goes into the answer."""

    def __init__(self, problem: Problem, request: Request, *, solver: str) -> None:
        self.problem, self.request, self.solver = problem, request, solver
        self.model = CostModel(problem)
        self.bound = bound_step(problem)
        self.best: StageGraph | None = None
        self.step_s = math.inf
        self.interrupted = False
        self.best_by_kind: dict[tuple[bool, int], tuple[float, StageGraph]] = {}
        """The best with and without shared devices, by the micro-batch size of the first stage."""
        self.num_obedient = 0
        """Offers that obeyed the pins."""

    def offer(self, parts: Sequence[Part]) -> float:
        """Evaluate parts, recomputing where memory asks for it; infinity when they cannot be."""
        pinned = apply_pins(self.problem, parts)
        if pinned is None:
            return math.inf
        self.num_obedient += 1
        return self.consider(assemble_stages(self.problem, choose_recompute(self.model, pinned)))

    def consider(self, stages: StageGraph) -> float:
        """Evaluate a stage graph as it is; keep it when it is the best."""
        step_s = self.request.evaluate(stages)
        if step_s < self.step_s and self.request.confirm is not None:
            step_s = self.request.confirm(stages)
        self.keep(stages, step_s)
        return step_s

    def keep(self, stages: StageGraph, step_s: float) -> None:
        """Keep an evaluated stage graph when it is the best, of all or of its kind."""
        groups = {stage.devices for stage in stages.stages}
        kind = (len(groups) < len(stages.stages), stages.stages[0].micro_batch_size)
        if kind not in self.best_by_kind or step_s < self.best_by_kind[kind][0]:
            self.best_by_kind[kind] = (step_s, stages)
        if step_s < self.step_s:
            self.best, self.step_s = stages, step_s
            if self.request.progress is not None:
                self.request.progress(step_s, self.bound.step_s)

    def is_late(self) -> bool:
        """Whether the time limit has passed."""
        return self.request.seconds_left <= 0

    def is_close(self, gap: float) -> bool:
        """Whether the best is at most this far above the bound (below it, the objective is not the
        step time, and the bound says nothing)."""
        bound_s = self.bound.step_s
        return bound_s * (1 - 1e-9) <= self.step_s <= bound_s * (1 + gap)

    def is_hopeless(self, least_s: float) -> bool:
        """Whether a step that takes at least so long is no alternative to the best either; never
        where evaluations tell something else than the step time, which none could confirm."""
        return self.request.confirm is not None and least_s > self.step_s * (1 + NEARLY)

    @contextlib.contextmanager
    def keep_best(self) -> Iterator[None]:
        """An interrupt inside ends the search; what was found so far is the answer."""
        try:
            yield
        except KeyboardInterrupt:
            if self.best is None:
                raise
            self.interrupted = True

    def make_answer(self, *, proven: bool = False, note: str = "") -> Answer:
        """The best so far; an error that says why there is none."""
        if self.best is not None:
            return Answer(
                solver=self.solver,
                stages=self.best,
                step_s=self.step_s,
                bound=self.bound,
                proven=proven,
                note=note,
                alternatives=self._list_alternatives(),
                interrupted=self.interrupted,
            )
        if self.problem.pins and not self.num_obedient:
            raise refuse_pins(self.problem, self.solver)
        late_s = self.request.time_limit_s if self.is_late() else None
        raise explain_infeasible(
            self.problem, policy=self.request.policy, solver=self.solver, late_s=late_s
        )

    def _list_alternatives(self) -> tuple[StageGraph, ...]:
        """The best of other kinds and other planners' answers, as far as they are nearly as good:
        the schedule decides among them."""
        kinds = sorted(
            (step_s, kind)
            for kind, (step_s, stages) in self.best_by_kind.items()
            if step_s <= self.step_s * (1 + NEARLY)
        )
        others = [self.best_by_kind[kind][1] for _, kind in kinds[: MAX_ALTERNATIVES + 1]]
        for answer in self.request.known.values():
            if answer.step_s <= self.step_s * (1 + FARTHER):
                others += [answer.stages, *answer.alternatives]
        return tuple(stages for stages in dict.fromkeys(others) if stages != self.best)
