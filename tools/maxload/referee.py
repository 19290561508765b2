"""check_parts: judge an answer to the max-load problem, its value recomputed."""

from __future__ import annotations

import math

from graphplan.partition.maxload.maxload import MaxLoad, PartsAnswer
from graphplan.referee.cuts import find_cycle, find_detour, group_edges
from graphplan.referee.verdict import Verdict, Violation

TOLERANCE = 1e-9


class Findings:
    """Broken rules in the order in which they are found."""

    def __init__(self) -> None:
        self._found: list[Violation] = []

    def add(self, rule: str, place: str, message: str) -> None:
        """Note a broken rule."""
        self._found.append(Violation(rule=rule, place=place, message=message))

    def conclude(self) -> Verdict:
        """What was found."""
        return Verdict(violations=tuple(self._found))


def check_parts(problem: MaxLoad, answer: PartsAnswer) -> Verdict:
    """Every op in one part, parts convex and acyclic, within memory, with the value claimed."""
    findings = Findings()
    part_by_op = _judge_cover(problem, answer, findings)
    if part_by_op is not None:
        _judge_shape(problem, answer, part_by_op, findings)
        _judge_memory(problem, answer, findings)
        _judge_value(problem, answer, part_by_op, findings)
    return findings.conclude()


def _judge_cover(problem: MaxLoad, answer: PartsAnswer, findings: Findings) -> list[int] | None:
    """The part of every op; None when they are not covered exactly once."""
    if len(answer.parts) > problem.num_parts:
        findings.add(
            "part-count", "answer", f"{len(answer.parts)} parts; {problem.num_parts} are allowed."
        )
    part_by_op = [-1] * len(problem.ops)
    is_whole = True
    for number, part in enumerate(answer.parts):
        for op in part:
            if not 0 <= op < len(problem.ops) or part_by_op[op] >= 0:
                known = 0 <= op < len(problem.ops)
                why = f"already in part {part_by_op[op]}" if known else "not in the problem"
                findings.add("op-once", f"part {number}", f"op {op} is {why}.")
                is_whole = False
            else:
                part_by_op[op] = number
    for op, number in enumerate(part_by_op):
        if number < 0:
            findings.add("op-once", "answer", f"op {op} is in no part.")
            is_whole = False
    return part_by_op if is_whole else None


def _judge_shape(
    problem: MaxLoad, answer: PartsAnswer, part_by_op: list[int], findings: Findings
) -> None:
    quotient = group_edges(problem.edges, part_by_op)
    cycle = find_cycle(len(answer.parts), quotient)
    if cycle is None:
        for (src, dst), (a, b) in quotient.items():
            if src > dst:
                findings.add(
                    "part-order", f"part {src}", f"op {a} feeds op {b} of the earlier part {dst}."
                )
        return
    circle = " -> ".join(map(str, [*cycle, cycle[0]]))
    findings.add("part-acyclic", f"parts {cycle}", f"data flows in a circle: {circle}.")
    for part in cycle:
        detour = find_detour(problem.edges, part_by_op, part)
        if detour is not None:
            findings.add(
                "part-convex",
                f"part {part}",
                f"a path leaves it to op {detour[0]} and comes back from op {detour[1]}.",
            )


def _judge_memory(problem: MaxLoad, answer: PartsAnswer, findings: Findings) -> None:
    if problem.memory_bytes is None:
        return
    for number, part in enumerate(answer.parts):
        needed = sum(problem.ops[op].bytes for op in part)
        if needed > problem.memory_bytes:
            findings.add(
                "memory",
                f"part {number}",
                f"{needed:,} bytes are needed, {problem.memory_bytes:,} are there.",
            )


def _judge_value(
    problem: MaxLoad, answer: PartsAnswer, part_by_op: list[int], findings: Findings
) -> None:
    """Loads: the ops' seconds, and once each tensor with ends inside and outside of the part."""
    terms: list[list[float]] = [[problem.ops[op].seconds for op in part] for part in answer.parts]
    for tensor in problem.tensors:
        parts = {part_by_op[op] for op in (tensor.owner, *tensor.readers)}
        if len(parts) > 1:
            for part in parts:
                terms[part].append(tensor.seconds)
    loads = [math.fsum(each) for each in terms]
    heaviest = max(range(len(loads)), key=loads.__getitem__)
    if not math.isclose(answer.value_s, loads[heaviest], rel_tol=TOLERANCE, abs_tol=1e-15):
        findings.add(
            "value",
            f"part {heaviest}",
            f"a load of {answer.value_s} s is claimed, the heaviest part has {loads[heaviest]} s.",
        )
    if not answer.bound_s <= answer.value_s * (1 + TOLERANCE):
        findings.add(
            "bound", "answer", f"the bound {answer.bound_s} s exceeds the value {answer.value_s} s."
        )
    if answer.proven and not math.isclose(answer.bound_s, answer.value_s, rel_tol=1e-6):
        findings.add(
            "bound",
            "answer",
            f"optimality is claimed, but bound {answer.bound_s} s and value {answer.value_s} s"
            " differ.",
        )
