"""PipeDream's planner (Narayanan et al., SOSP 2019): the best chain of replicated stages.

The graph is linearised; a stage is an interval of the order on consecutive devices, so that
neighbours share a node where they can. As published, the bottleneck stage counts: the larger of its
compute (with its share of the gradient reduction) and its transfers. Links are those of the stage's
place in the cluster, and a whole pipeline may be replicated over equal groups of nodes, which is
the paper's second level.

Where it differs: the samples that a replica sees are priced as such instead of dividing by the
replicas, and memory is part of the search. For a target time t, a dynamic program from the end of
the order finds the *fewest stages* for every (first block, devices left): fewer stages downstream
mean fewer micro-batches in flight, so that one value is enough (the argument of GraphPipe). The
smallest t is found by bisection, for every micro-batch size and several orders; the judged step
time decides between them.
"""

from __future__ import annotations

import itertools

from graphplan.cost.cuts import OrderCuts
from graphplan.cost.model import CostModel
from graphplan.partition.dag.linear import list_problem_orders, make_blocks, weigh_flows
from graphplan.partition.pipelines.sweep import sweep_settings
from graphplan.partition.proposal import Proposals, Wish

COARSE_BLOCKS, FINE_BLOCKS, MOST_BLOCKS = 48, 128, 400
BLOCKS_PER_STAGE = 3
"""Blocks for each stage that memory makes necessary."""
NUM_ORDERS = 3


def propose(cost: CostModel, wish: Wish) -> Proposals:
    """Chains over all micro-batch sizes, levels of replication and orders."""
    needed = min(BLOCKS_PER_STAGE * _count_stages(cost), MOST_BLOCKS)
    coarse = make_cuts(cost, num_orders=1, max_blocks=max(COARSE_BLOCKS, needed))
    fine = make_cuts(
        cost,
        num_orders=NUM_ORDERS,
        max_blocks=max(FINE_BLOCKS, min(2 * needed, MOST_BLOCKS)),
    )
    yield from sweep_settings(cost, wish, coarse[0], fine)
    return ""


def _count_stages(cost: CostModel) -> int:
    """Stages that the weights alone make necessary."""
    problem = cost.problem
    nodes = range(problem.num_nodes)
    held = int(cost.stage_memory(nodes, problem.sample_sizes[0]).fixed)
    return -(-held // max(device.memory_bytes for device in problem.cluster.devices))


def make_cuts(cost: CostModel, *, num_orders: int, max_blocks: int) -> list[OrderCuts]:
    """The cuts along a few orders."""
    problem = cost.problem
    work = (problem.forward_s + problem.input_grad_s + problem.weight_grad_s)[0, -1]
    tensors = weigh_flows(problem)
    orders = itertools.islice(list_problem_orders(problem), num_orders)
    return [
        OrderCuts(cost, make_blocks(order, work, tensors, max_blocks=max_blocks))
        for order in orders
    ]
