"""Questions for planners: small problems, every plan that they have, and a planner's answer."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from hypothesis import strategies as st

from graphplan.cost.model import CostModel
from graphplan.errors import CutError
from graphplan.nouns.cluster import Link
from graphplan.nouns.plan import Bound, PlannedModel
from graphplan.nouns.problem import Problem
from graphplan.nouns.stages import StageGraph
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.planner.contest import Contest, run_through
from graphplan.planner.options import SearchOptions
from graphplan.planner.search import PlanSearch
from tests.pure.problems import make_cluster, make_problem_by_hand

CHAIN = [(0, 1), (1, 2), (2, 3)]
DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]
SLOW = Link(bandwidth_bytes_per_s=64.0, latency_s=0.01)
PLANNERS = ("data-parallel", "equal", "chain", "downset", "ilp")


@dataclasses.dataclass(frozen=True)
class Answer:
    """The fastest that a planner proposed."""

    stages: StageGraph
    step_s: float
    bound: Bound
    note: str
    num_judged: int

    @property
    def gap(self) -> float:
        """step / bound - 1."""
        return self.step_s / self.bound.step_s - 1 if self.bound.step_s else 0.0


def ask(
    problem: Problem,
    planner: str,
    *,
    searched: bool = False,
    effort: float = 1.0,
    seed: int = 0,
) -> Answer:
    """The answer of a planner, judged by its 1F1B order or, if `searched`, by rehearsals."""
    options = SearchOptions(
        planner=planner,
        schedule="auto" if searched else "interleaved",
        effort=effort,
        seed=seed,
        baselines=False,
    )
    return finish(open_contest(problem, options))


def open_contest(problem: Problem, options: SearchOptions) -> Contest:
    """A contest in which the planner has proposed all that it has to say; auto, before any plan is
    scheduled."""
    cost = CostModel(problem)
    if options.planner == "auto":
        search = PlanSearch(cost, options)
        next((each for each in search.run() if each.phase == "schedules"), None)
        return search.contest
    contest = Contest(cost, options)
    run_through(contest.ask(options.planner))
    return contest


def finish(contest: Contest) -> Answer:
    """What a contest has found; an error that says why that is nothing."""
    found = contest.merge()
    if found.best is None:
        raise contest.refuse(found)
    fastest = min(found.step_by_stages, key=lambda stages: found.step_by_stages[stages])
    return Answer(
        stages=fastest,
        step_s=found.step_s,
        bound=contest.bound,
        note=found.note,
        num_judged=found.num_judged,
    )


def list_partitions(num_nodes: int) -> Iterator[list[tuple[int, ...]]]:
    """All ways to cut nodes into sets (restricted growth strings)."""

    def grow(labels: list[int]) -> Iterator[list[int]]:
        if len(labels) == num_nodes:
            yield labels
            return
        for label in range(max(labels, default=-1) + 2):
            yield from grow([*labels, label])

    for labels in grow([]):
        count = max(labels) + 1
        yield [tuple(v for v, label in enumerate(labels) if label == p) for p in range(count)]


def list_plans(problem: Problem) -> Iterator[StageGraph]:
    """Every partition with every placement on disjoint groups of devices and every size."""
    devices = range(len(problem.cluster.devices))
    groups = [
        group for r in range(1, len(devices) + 1) for group in itertools.combinations(devices, r)
    ]
    for sets in list_partitions(problem.num_nodes):
        for chosen in itertools.product(groups, repeat=len(sets)):
            used = [device for group in chosen for device in group]
            if len(set(used)) != len(used):
                continue
            for size in problem.micro_batch_sizes:
                if any(size % len(group) for group in chosen):
                    continue
                parts = [
                    Part(nodes=nodes, devices=group, micro_batch_size=size)
                    for nodes, group in zip(sets, chosen, strict=True)
                ]
                try:
                    yield assemble_stages(problem, parts)
                except CutError:
                    break


def describe(problem: Problem) -> PlannedModel:
    """The op DAG for the referee."""
    ops = tuple(op for node in problem.nodes for op in node.ops)
    return PlannedModel(name="test", fingerprint="0" * 16, ops=ops, edges=problem.edges)


@st.composite
def problems(draw: st.DrawFn, *, max_nodes: int = 4, max_devices: int = 3) -> Problem:
    """Small problems with weights, links that cost time, and saved tensors."""
    num = draw(st.integers(1, max_nodes), label="nodes")
    pairs = list(itertools.combinations(range(num), 2))
    edges = draw(st.lists(st.sampled_from(pairs), unique=True), label="edges") if pairs else []
    whole = st.lists(st.integers(0, 4), min_size=num, max_size=num)
    link = SLOW if draw(st.booleans(), label="slow links") else None
    return make_problem_by_hand(
        [float(s) for s in draw(whole, label="seconds")],
        edges,
        cluster=make_cluster(
            draw(st.integers(1, max_devices), label="devices"),
            devices_per_node=2,
            inside=link,
            between=link,
        ),
        batch_size=4,
        micro_batch_sizes=(1, 2, 4),
        trained_elements=[100 * w for w in draw(whole, label="weights")],
        saved_bytes=draw(whole, label="saved"),
        overhead_s=float(draw(st.integers(0, 2), label="overhead")),
        flow_elements=draw(st.integers(1, 8), label="elements"),
    )
