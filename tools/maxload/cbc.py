"""The max-load program of `ilp` by CBC, another solver: a cross-check of CP-SAT's answers."""

from __future__ import annotations

from graphplan.errors import SearchLimit
from graphplan.partition.maxload.contract import contract_maxload
from graphplan.partition.maxload.loads import (
    bound_load,
    explain_parts,
    make_parts_answer,
    measure_load,
)
from graphplan.partition.maxload.maxload import MaxLoad, PartsAnswer
from graphplan.partition.maxload.program import choose_unit, read_parts, write_program
from graphplan.partition.maxload.shrink import restore_answer
from tools.maxload.incumbent import find_incumbent


def solve_maxload(problem: MaxLoad, *, time_limit_s: float = 10.0, seed: int = 0) -> PartsAnswer:
    """The optimum, or the best cut and bound within the time limit."""
    small, groups = contract_maxload(problem)
    return restore_answer(problem, groups, _solve_contracted(small, time_limit_s, seed))


def _solve_contracted(problem: MaxLoad, time_limit_s: float, seed: int) -> PartsAnswer:
    import pulp

    chain = find_incumbent(problem, seed=seed)
    bound_s = bound_load(problem)
    program = write_program(problem, unit_s=choose_unit(bound_s))
    model = pulp.LpProblem("maxload", pulp.LpMinimize)
    variables = [
        pulp.LpVariable(f"v{v}", 0, 1, "Integer" if v < program.num_ladder else "Continuous")
        for v in range(program.num_variables)
    ]
    # In units of the bound, so that all coefficients lie near 1.
    scale = max(bound_s / program.unit_s, 1.0)
    load = pulp.LpVariable("load", lowBound=bound_s / program.unit_s / scale)
    model += load
    for row in program.rows:
        divisor = scale if row.is_load else max(1, *map(abs, row.terms.values()))
        total = pulp.lpSum(c / divisor * variables[v] for v, c in row.terms.items())
        model += total <= row.limit / divisor + (load if row.is_load else 0)
    status = model.solve(
        pulp.PULP_CBC_CMD(msg=False, timeLimit=time_limit_s, gapRel=0.0, gapAbs=1e-9)
    )
    if status == pulp.LpStatusInfeasible:
        raise explain_parts(problem)
    optimal = model.sol_status == pulp.LpSolutionOptimal
    found = None
    if model.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        # A variable that is in no row has no value.
        values = [variable.value() or 0.0 for variable in variables[: program.num_ladder]]
        ladder = [value > 0.5 for value in values]
        found = read_parts(problem, ladder)
    known = [parts for parts in (found, None if chain is None else chain.parts) if parts]
    if not known:
        raise SearchLimit(
            f"CBC found no cut of {problem.name!r} in {time_limit_s:.1f} s.",
            remedy="Give it more time, or use the down-set search.",
        )
    best = min(known, key=lambda parts: max(measure_load(problem, part) for part in parts))
    return make_parts_answer(problem, best, solver="ilp-cbc", bound_s=bound_s, proven=optimal)
