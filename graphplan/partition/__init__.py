"""Partition: planners that propose cuts of a problem's graph into a graph of stages.

Every planner is a module with `propose(cost, wish) -> Proposals`; it is imported when asked for.
None of them calls another one, or judges; the search does (planner/search.py).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from graphplan.errors import UnknownName

if TYPE_CHECKING:
    from graphplan.cost.model import CostModel
    from graphplan.partition.proposal import Proposals, Wish

PLANNERS: dict[str, str] = {
    "data-parallel": "graphplan.partition.dataparallel",
    "equal": "graphplan.partition.equal",
    "chain": "graphplan.partition.chain",
    "2bw": "graphplan.partition.twobw",
    "downset": "graphplan.partition.downset",
    "ilp": "graphplan.partition.ilp",
    "graphpipe": "graphplan.partition.graphpipe",
    "towers": "graphplan.partition.towers",
    "tree": "graphplan.partition.tree",
    "graph": "graphplan.partition.graph",
}
"""Module of each planner by its name."""


def propose_drafts(cost: CostModel, name: str, wish: Wish) -> Proposals:
    """The proposals of the planner with this name."""
    if name not in PLANNERS:
        raise UnknownName("planner", name, PLANNERS)
    proposals: Proposals = importlib.import_module(PLANNERS[name]).propose(cost, wish)
    return proposals
