"""Shrinking a max-load problem: light ops join a neighbour until few enough are left."""

from __future__ import annotations

import msgspec

from graphplan.partition.dag.fold import Groups, fold_nodes
from graphplan.partition.dag.linear import make_blocks, order_by_cut
from graphplan.partition.maxload.loads import bound_load, make_parts_answer
from graphplan.partition.maxload.maxload import LoadOp, LoadTensor, MaxLoad, PartsAnswer

SHARES = (1 / 1024, 1 / 512, 1 / 256, 1 / 128)
"""Work that one group may gain by folding, as shares of all work, tried in turn."""


def shrink_maxload(problem: MaxLoad, *, max_ops: int) -> tuple[MaxLoad, Groups]:
    """A problem with at most `max_ops` ops, and the ops of the original in each of them.

    Folding is tried first, as it keeps the shape of the graph; what is still too large is cut into
    blocks of one order.
    """
    groups: Groups = tuple((op,) for op in range(problem.num_ops))
    work = [op.seconds for op in problem.ops]
    for share in SHARES:
        if len(groups) <= max_ops:
            break
        groups = fold_nodes(problem.num_ops, problem.edges, work, max_share=share).groups
    if len(groups) > max_ops:
        tensors = [(tuple(tensor.ends), tensor.seconds) for tensor in problem.tensors]
        order = order_by_cut(problem.predecessors, problem.successors, tensors)
        groups = tuple(make_blocks(order, work, tensors, max_blocks=max_ops))
    return merge_groups(problem, groups), groups


def merge_groups(problem: MaxLoad, groups: Groups) -> MaxLoad:
    """The problem whose ops are groups of ops, numbered in a topological order."""
    group_of = {op: g for g, group in enumerate(groups) for op in group}
    edges = {(group_of[src], group_of[dst]) for src, dst in problem.edges}
    return msgspec.structs.replace(
        problem,
        ops=tuple(
            LoadOp(
                name=problem.ops[group[0]].name,
                seconds=sum(problem.ops[op].seconds for op in group),
                bytes=sum(problem.ops[op].bytes for op in group),
            )
            for group in groups
        ),
        edges=tuple(sorted((src, dst) for src, dst in edges if src != dst)),
        tensors=tuple(
            LoadTensor(
                owner=group_of[tensor.owner],
                readers=tuple(sorted({group_of[reader] for reader in tensor.readers})),
                seconds=tensor.seconds,
            )
            for tensor in problem.tensors
        ),
    )


def restore_answer(
    problem: MaxLoad, groups: Groups, answer: PartsAnswer, *, exact: bool = True, note: str = ""
) -> PartsAnswer:
    """The answer of a problem of groups as one of the original.

    Its proof and bound hold for the original if the groups are `exact`.
    """
    parts = [[op for group in part for op in groups[group]] for part in answer.parts]
    return make_parts_answer(
        problem,
        parts,
        solver=answer.solver,
        bound_s=answer.bound_s if exact else bound_load(problem),
        proven=answer.proven and exact,
        note=note or answer.note,
    )
