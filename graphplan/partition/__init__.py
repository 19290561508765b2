"""Partition: solvers that cut a problem's graph into a graph of stages, with a lower bound.

Every solver is a module with `solve(problem, request) -> Answer`; it is imported when asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from graphplan.errors import UnknownName

if TYPE_CHECKING:
    from graphplan.nouns.problem import Problem
    from graphplan.partition.answer import Answer, Request

SOLVERS: dict[str, str] = {
    "data-parallel": "graphplan.partition.dataparallel",
    "equal": "graphplan.partition.equal",
    "chain": "graphplan.partition.chain",
    "2bw": "graphplan.partition.twobw",
    "downset": "graphplan.partition.downset",
    "ilp": "graphplan.partition.ilp",
    "graphpipe": "graphplan.partition.graphpipe",
    "graph": "graphplan.partition.graph",
    "auto": "graphplan.partition.auto",
}
"""Module of each solver by its name."""


def solve_problem(problem: Problem, name: str, request: Request) -> Answer:
    """The answer of the solver with this name, asked once for a request."""
    if name not in SOLVERS:
        raise UnknownName("planner", name, SOLVERS)
    if name not in request.known:
        request.known[name] = importlib.import_module(SOLVERS[name]).solve(problem, request)
    return request.known[name]
