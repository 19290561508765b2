"""The default planner: the best of what several planners find, as far as size and time allow.

`graph` is asked first and also uses the others' answers that are known already; then those whose
plans it does not contain, while there is time. Every answer is a plan that could be returned, so
that a short limit or an interrupt still gives the best of what was found.
"""

from __future__ import annotations

import dataclasses
import math

from graphplan.errors import InvalidOption, NoFeasiblePlan, SearchLimit
from graphplan.nouns.problem import Problem
from graphplan.partition import solve_problem
from graphplan.partition.answer import Answer, Progress, Request
from graphplan.partition.choose import Chooser

HUGE_NODES = 20_000
"""Nodes above which a quick plan comes first: `graph` needs some seconds for its first one."""
MIN_LEFT_SHARE = 0.2
"""Share of the time that must be left for a further planner."""
CLOSE_GAP = 0.005
"""Distance from the lower bound at which no further planner is asked."""


def solve(problem: Problem, request: Request) -> Answer:
    """The best answer of several planners."""
    quiet = dataclasses.replace(request, progress=_tell_better(request.progress))
    chooser = Chooser(problem, quiet, solver="auto")
    found_by = ""
    with chooser.keep_best():
        for name in _list_planners(problem):
            if chooser.best is not None and _is_enough(chooser):
                break
            answer = _ask(problem, name, quiet)
            if answer is None:
                continue
            step_s = _rehearse(answer, quiet)
            found_by = name if step_s < chooser.step_s else found_by
            chooser.keep(answer.stages, step_s)
            if answer.interrupted:
                raise KeyboardInterrupt
            for stages in answer.alternatives:
                chooser.consider(stages)
    return chooser.make_answer(note=f"found by {found_by}" if found_by else "")


def _list_planners(problem: Problem) -> tuple[str, ...]:
    """In the order in which they are asked; data-parallel is instant and nearly always fits."""
    if problem.num_nodes > HUGE_NODES:
        return "data-parallel", "equal", "graph"
    return "graph", "chain", "equal", "graphpipe"


def _is_enough(chooser: Chooser) -> bool:
    """Whether the time is nearly up, or little is left to gain."""
    request = chooser.request
    short = request.seconds_left < MIN_LEFT_SHARE * request.time_limit_s
    return short or chooser.is_close(CLOSE_GAP)


def _ask(problem: Problem, name: str, request: Request) -> Answer | None:
    try:
        return solve_problem(problem, name, request)
    except (InvalidOption, NoFeasiblePlan, SearchLimit):
        return None


def _rehearse(answer: Answer, request: Request) -> float:
    """Step seconds of an answer as `graph` counts its own."""
    if request.rehearse is None or answer.solver == "graph" or request.seconds_left <= 0:
        return answer.step_s
    return min(answer.step_s, request.rehearse(answer.stages))


def _tell_better(progress: Progress | None) -> Progress | None:
    """Progress of several planners, each of which starts anew: only what is better is told."""
    if progress is None:
        return None
    told_s = math.inf

    def tell(step_s: float, bound_s: float) -> None:
        nonlocal told_s
        if step_s < told_s:
            told_s = step_s
            progress(step_s, bound_s)

    return tell
