"""Integer programming: exact max-load by CP-SAT.

For pipelines the bottleneck of equally replicated stages is minimised exactly for every micro-batch
size and width, and the judged step time decides between the results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Sequence

from graphplan.cost.model import CostModel
from graphplan.errors import NoFeasiblePlan, SearchLimit
from graphplan.nouns.problem import Problem
from graphplan.partition.assemble import Draft, Part
from graphplan.partition.dag.fold import Groups
from graphplan.partition.equal import cut_evenly
from graphplan.partition.maxload.contract import contract_maxload
from graphplan.partition.maxload.loads import (
    bound_load,
    explain_parts,
    make_parts_answer,
    measure_load,
)
from graphplan.partition.maxload.maxload import MaxLoad, PartsAnswer
from graphplan.partition.maxload.program import (
    choose_unit,
    read_parts,
    write_ladder,
    write_program,
)
from graphplan.partition.maxload.reduce import reduce_problem
from graphplan.partition.maxload.shrink import restore_answer, shrink_maxload
from graphplan.partition.proposal import Proposals, Wish, offer_parts

Parts = Sequence[Sequence[int]]
MAX_OPS = 160
"""Pipelines are folded to so many groups of nodes: more take CP-SAT minutes."""
NUM_SOLVED = 3
"""Shapes for which the program is solved; all others get a quick cut."""
SOLVER_EFFORT = 1.0
"""Deterministic seconds of CP-SAT for each of these."""


def propose(cost: CostModel, wish: Wish) -> Proposals:
    """Pipelines of equally replicated stages with the smallest bottleneck."""
    quick: list[tuple[float, int, _Shape]] = []
    for shape in _list_shapes(cost.problem):
        step_s = yield from offer_parts(cost, shape.make_parts(cut_by_work(shape.load)))
        quick.append((step_s, len(quick), shape))
    shapes = [shape for _, _, shape in sorted(quick, key=lambda each: each[:2])]
    num_proven = 0
    for shape in [each for each in shapes if each.load.num_parts > 1][:NUM_SOLVED]:
        num_proven += yield from _offer_optimum(cost, wish, shape)
    return f"bottleneck proven optimal for {num_proven} shapes"


def cut_by_work(problem: MaxLoad) -> Parts:
    """Parts of about equal work along the order of the ops: a quick cut."""
    count = min(problem.num_parts, problem.num_ops)
    ranges = cut_evenly([op.seconds for op in problem.ops], count)
    return [tuple(range(first, last)) for first, last in ranges]


@dataclasses.dataclass(frozen=True)
class _Shape:
    """Stages x replicas, the micro-batch size, and the max-load problem that it means."""

    num_replicas: int
    size: int
    load: MaxLoad
    groups: Groups

    def make_parts(self, answer: Parts) -> list[Part]:
        """Stages on consecutive devices."""
        return [
            Part(
                nodes=tuple(sorted(node for group in part for node in self.groups[group])),
                devices=tuple(range(s * self.num_replicas, (s + 1) * self.num_replicas)),
                micro_batch_size=self.size,
            )
            for s, part in enumerate(part for part in answer if part)
        ]


def _list_shapes(problem: Problem) -> Iterator[_Shape]:
    """Every width x depth that uses all devices, with every micro-batch size."""
    num_devices = len(problem.cluster.devices)
    for width in range(1, num_devices + 1):
        depth = num_devices // width
        for size in problem.micro_batch_sizes:
            legal = size % width == 0 and size // width in problem.size_index
            if depth * width == num_devices and legal:
                load = reduce_problem(problem, size, num_parts=depth, num_replicas=width)
                small, groups = shrink_maxload(load, max_ops=MAX_OPS)
                yield _Shape(width, size, small, groups)


def _offer_optimum(
    cost: CostModel, wish: Wish, shape: _Shape
) -> Generator[Draft | None, float, bool]:
    """Whether the bottleneck was proven optimal."""
    effort = SOLVER_EFFORT * wish.effort
    try:
        answer = solve_maxload(shape.load, seed=wish.seed, effort=effort)
    except (NoFeasiblePlan, SearchLimit):
        return False
    yield from offer_parts(cost, shape.make_parts(answer.parts))
    return answer.proven


def solve_maxload(problem: MaxLoad, *, seed: int = 0, effort: float = 10.0) -> PartsAnswer:
    """The optimum, or the best cut and bound within so many deterministic seconds of CP-SAT."""
    small, groups = contract_maxload(problem)
    return restore_answer(problem, groups, solve_contracted(small, seed=seed, effort=effort))


def solve_contracted(
    problem: MaxLoad, *, seed: int = 0, effort: float, hint: Parts | None = None
) -> PartsAnswer:
    """The same without looking for ops that can be contracted; `hint` is a cut to start from."""
    if problem.num_parts == 1:
        return _answer_whole(problem)
    quick = cut_by_work(problem)
    known = [hint] if hint is not None else [quick] if _fits(problem, quick) else []
    return _solve_cpsat(problem, known, seed=seed, effort=effort)


def _fits(problem: MaxLoad, parts: Parts) -> bool:
    limit = problem.memory_bytes
    return limit is None or all(sum(problem.ops[v].bytes for v in p) <= limit for p in parts)


def _answer_whole(problem: MaxLoad) -> PartsAnswer:
    everything = [tuple(range(problem.num_ops))]
    if not _fits(problem, everything):
        raise explain_parts(problem)
    return make_parts_answer(problem, everything, solver="ilp", bound_s=0.0, proven=True)


def _solve_cpsat(
    problem: MaxLoad, known: Sequence[Parts], *, seed: int, effort: float
) -> PartsAnswer:
    from ortools.sat.python import cp_model

    bound_s = bound_load(problem)
    program = write_program(problem, unit_s=choose_unit(bound_s))
    model = cp_model.CpModel()
    variables = [model.new_bool_var("") for _ in range(program.num_variables)]
    highest = round(2 * sum(op.seconds for op in problem.ops) / program.unit_s)
    highest += 2 * round(sum(t.seconds for t in problem.tensors) / program.unit_s)
    lowest = max(0, int(bound_s / program.unit_s) - program.rounding)
    load = model.new_int_var(lowest, highest, "load")
    for row in program.rows:
        total = cp_model.LinearExpr.weighted_sum(
            [variables[v] for v in row.terms], list(row.terms.values())
        )
        model.add(total <= row.limit + load if row.is_load else total <= row.limit)
    model.minimize(load)
    for hint in known:
        for variable, value in zip(variables, write_ladder(problem, hint), strict=False):
            model.add_hint(variable, value)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = effort
    solver.parameters.random_seed = seed
    # One worker is deterministic, and on these programs no slower than several.
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        raise explain_parts(problem)
    found = list(known)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        ladder = [bool(solver.value(v)) for v in variables[: program.num_ladder]]
        found.append(read_parts(problem, ladder))
    if not found:
        raise SearchLimit(
            f"No cut of {problem.name!r} was found with an effort of {effort:g}.",
            remedy="Use more effort, or the down-set search.",
        )
    # The program's own value is rounded, so that it is measured again.
    cuts = [[part for part in parts if part] for parts in found]
    best = min(cuts, key=lambda parts: max(measure_load(problem, part) for part in parts))
    proven_s = (solver.best_objective_bound - program.rounding) * program.unit_s
    return make_parts_answer(
        problem,
        best,
        solver="ilp",
        bound_s=max(bound_s, proven_s),
        proven=status == cp_model.OPTIMAL,
    )
