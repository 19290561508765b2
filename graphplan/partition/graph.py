"""The `graph` planner: any DAG, stages in any grouping, improved by moves.

Drafts of the dynamic program (tree.py), and a local search that climbs from the best of them
(improve.py). `auto` lets it climb from the drafts of other planners, too.
"""

from __future__ import annotations

from graphplan.cost.model import CostModel
from graphplan.partition.improve import improve_drafts
from graphplan.partition.proposal import Proposals, Wish
from graphplan.partition.tree import propose_trees


def propose(cost: CostModel, wish: Wish) -> Proposals:
    """The drafts of the dynamic program, then better ones."""
    found, note = yield from propose_trees(cost, wish)
    yield from improve_drafts(cost, wish, found)
    return note
