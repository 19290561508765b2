"""Exact search over down-sets (Piper, Tarnawski et al., NeurIPS 2021).

Piper's dynamic program with replicated stages, the bottleneck as its objective; stages are placed
one after the other as in a chain, but hold any nodes that a cut of the graph allows. Light nodes
are folded into their neighbours until the graph has few enough down-sets; a graph that still has
too many is searched over a sample of them, and the answer says so.
"""

from __future__ import annotations

from graphplan.cost.model import CostModel
from graphplan.partition.pipelines.family import list_all_cuts, sample_cuts
from graphplan.partition.pipelines.sweep import sweep_settings
from graphplan.partition.proposal import Proposals, Wish

COARSE_DOWNSETS, FINE_DOWNSETS = 120, 700
"""Down-sets for the sweep over all settings, and for the best of them."""


def propose(cost: CostModel, wish: Wish) -> Proposals:
    """Pipelines whose stages lie between down-sets."""
    whole = list_all_cuts(cost, limit=FINE_DOWNSETS)
    sampled = sample_cuts(cost, limit=FINE_DOWNSETS, seed=wish.seed)
    coarse = list_all_cuts(cost, limit=COARSE_DOWNSETS)
    if coarse is None:
        coarse = sample_cuts(cost, limit=COARSE_DOWNSETS, seed=wish.seed)
    fine = [] if whole is None else [whole]
    # What is folded a lot misses cuts that a sample of finer down-sets has.
    if whole is None or len(whole.items) < len(sampled.items):
        fine.append(sampled)
    yield from sweep_settings(cost, wish, coarse, fine)
    if whole is None:
        return f"more than {FINE_DOWNSETS} down-sets: {len(sampled.downsets)} of them were searched"
    return f"all {len(whole.downsets)} down-sets of {len(whole.items)} groups of nodes"
