"""The search, on one page.

    OpGraph -> coarsen -> Problem -> CostModel
      miniatures problems for fewer devices in place of one for very many (miniature.py)
      rivals     what people have: data parallelism, sequential pipelines
      proposals  planners propose drafts, a judge judges them (contest.py)
      improving  moves from the best drafts (partition/improve.py)
      schedules  the best few are scheduled and simulated in full; the best step wins, and of equal
                 ones the simplest plan
      compared   sequential pipelines again under their own rule; other weight policies
    -> referee -> Plan

The search is a generator: it yields at every draft. Who reads it shows progress, and may stop
reading, because the user pressed Ctrl-C or because a guard of so many seconds fired; what was found
until then is scheduled and returned, and says who ended it. Everything else is counted: how many
drafts, moves and orders there are is fixed by the problem and the effort, so that the same question
has the same answer on every machine, however busy.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from graphplan.cost.model import CostModel
from graphplan.errors import InvalidOption, NoFeasiblePlan, SearchLimit
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Ended, Plan, PolicyOffer
from graphplan.nouns.problem import Problem
from graphplan.nouns.stages import StageGraph, ZeroLevel
from graphplan.partition.bounds.bound import bound_step
from graphplan.partition.improve import improve_drafts, simplify_draft
from graphplan.partition.memory import choose_sharing, set_level
from graphplan.planner.certainty import judge_certainty
from graphplan.planner.collect import Scheduled, collect_plan, schedule_stages
from graphplan.planner.contest import TIE, Contest, Shortlist, pick_starts
from graphplan.planner.judge import Judge
from graphplan.planner.miniature import enlarge_stages, list_miniatures
from graphplan.planner.options import SearchOptions
from graphplan.planner.pose import Tables, pose_problem
from graphplan.planner.streaming import offer_policies
from graphplan.schedule.auto import count_tasks

DATA_PARALLEL, LINEAR, SEQUENTIAL = "data-parallel", "linear", "sequential"
"""Baselines. The last one's stages run one after another: no plan of ours can be it, as a plan runs
with its true dependencies only."""
ZERO_1, FSDP = "zero-1", "fsdp"
LEVEL_BY_RIVAL: dict[str, ZeroLevel] = {DATA_PARALLEL: 0, ZERO_1: 1, FSDP: 3}
"""Data parallelism as it is used: DDP, and with shared states."""
LINEAR_PLANNERS = ("chain", "equal")
STARTERS = (DATA_PARALLEL, *LINEAR_PLANNERS, "towers", "graph")
"""Planners whose drafts auto starts from."""
SHRINKING = ("auto", "graph")
"""Planners that plan for miniatures of a large problem; published ones do as published."""
IMPROVED = "improved"
"""What auto calls its own proposals."""
NUM_STARTS = 6
"""Best drafts of each planner from which moves start."""
MAX_STARTER_NODES = 2000
"""Nodes above which `chain` and `towers` are left out."""
FINAL_EFFORT, WINNER_EFFORT, RIVAL_EFFORT = 0.1, 0.25, 0.1
"""Efforts of the schedules of every finalist, of the best two once more, and of each baseline."""
OFFER_EFFORT, MAX_OFFER_TASKS = 0.1, 4_000
"""Effort of the order of each asynchronous policy that a plan is compared with; batches of very
many micro-batches, which have little to gain, are not compared."""
SCHEDULE_ORDER = ("1f1b", "gpipe", "kfkb", "interleaved", "zero-bubble", "list", "modulo", "cpsat")
"""Schedules, the simplest first."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a search is."""

    phase: str
    share: float
    """Of the whole search, about."""
    step_s: float
    """The best judgement so far, infinity if there is none."""
    bound_s: float


Watch = Callable[[Progress], None]


def search_plan(
    graph: OpGraph,
    cluster: Cluster,
    options: SearchOptions | None = None,
    *,
    tables: Tables | None = None,
    watch: Watch | None = None,
) -> Plan:
    """The best plan that the chosen planner finds; costs are estimated unless tables are given."""
    options = options or SearchOptions()
    deadline_s = _set_deadline(options)
    cost = CostModel(pose_problem(graph, cluster, options, tables=tables))
    search = PlanSearch(cost, options)
    ended = read_search(search.run(), deadline_s, watch)
    ready = search.finish(ended)
    return collect_plan(
        graph,
        cost,
        search.stages,
        ready,
        options,
        bound=search.bound,
        ended=ended,
        baselines={name: found.prediction.step_s for name, found in search.rivals.items()},
        offers=search.offers,
        costs=next(iter(tables.values())).source if tables else "estimated",
        certainty=judge_certainty(tables) if tables else None,
    )


def _set_deadline(options: SearchOptions) -> float | None:
    """The moment at which the guard fires."""
    return None if options.time_limit_s is None else time.monotonic() + options.time_limit_s


def read_search(
    steps: Iterator[Progress], deadline_s: float | None, watch: Watch | None = None
) -> Ended:
    """Read a search to its end, or until the guard fires or the user interrupts it."""
    try:
        for progress in steps:
            if watch is not None:
                watch(progress)
            if deadline_s is not None and time.monotonic() > deadline_s:
                return "clock"
    except KeyboardInterrupt:
        return "user"
    return ""


class PlanSearch:
    """One search: its contests, and the best that it has."""

    def __init__(self, cost: CostModel, options: SearchOptions) -> None:
        self.cost, self.options = cost, options
        self.bound = bound_step(cost.problem)
        may_shrink = options.planner in SHRINKING
        self.levels = list_miniatures(cost.problem) if may_shrink else iter([(cost.problem,)])
        self.contests: list[Contest] = []
        """Of the problem, or of its miniatures, apart and adjacent."""
        self.rivals: dict[str, Scheduled] = {}
        self.offers: tuple[PolicyOffer, ...] = ()
        self._one_stage: list[tuple[StageGraph, Scheduled]] = []
        """Rivals of one stage that the plan may be."""
        self._final: tuple[StageGraph, Scheduled] | None = None

    @property
    def stages(self) -> StageGraph:
        """The stages of the plan."""
        assert self._final is not None, "finish comes first"
        return self._final[0]

    @property
    def contest(self) -> Contest:
        """The contest with the best draft so far."""
        return min(self.contests, key=lambda each: each.merge().step_s)

    def run(self) -> Iterator[Progress]:
        """The phases, one after the other."""
        for problems in self.levels:
            self._open(problems)
            yield from self._propose()
            if self._merge().best is not None:
                break
        if self.options.planner == "auto":
            contest = self.contest
            lists = list(contest.shortlist_by_planner.values())
            starts = pick_starts(lists, count=NUM_STARTS)
            better = improve_drafts(contest.cost, contest.wish, starts)
            yield from self._watch("improving", 0.4, 0.8, contest.drive(IMPROVED, better))
        yield from self._watch("improving", 0.8, 0.82, self._simplify())
        yield from self._watch("schedules", 0.82, 0.9, self._schedule_finalists())
        if self.options.baselines:
            yield from self._watch("compared", 0.9, 0.95, self._schedule_rivals())
        yield from self._watch("compared", 0.95, 1.0, self._compare_policies())

    def finish(self, ended: Ended) -> Scheduled:
        """The scheduled plan; when the search was ended early, of the best draft so far."""
        if self._final is None:
            found = self._merge()
            if found.best is None:
                if ended == "user":
                    raise KeyboardInterrupt
                if ended == "clock":
                    raise refuse_time(self.options)
                raise self.contest.refuse(found)
            stages = self._enlarge(found.best)
            self._final = stages, self._schedule(stages, self._choose_last_effort(ended))
        return self._final[1]

    def _choose_last_effort(self, ended: Ended) -> float:
        """Who ended the search waits: great efforts are not spent on the last schedule then."""
        return FINAL_EFFORT / max(1.0, self.options.effort) if ended else FINAL_EFFORT

    # -- phases ----------------------------------------------------------------------------------

    def _watch(
        self, phase: str, start: float, end: float, steps: Iterator[None]
    ) -> Iterator[Progress]:
        """The steps of a phase, which takes the search from one share to another."""
        for num, _ in enumerate(steps, 1):
            # Nobody knows how many there are: half of what is left after every hundred.
            share = end - (end - start) * 0.5 ** (num / 100)
            yield Progress(phase, share, self._merge_best(), self.bound.step_s)

    def _open(self, problems: Sequence[Problem]) -> None:
        """A contest for each of the problems, and one for the rivals."""
        options, bound = self.options, self.bound
        self.contests = [
            Contest(
                self.cost if each is self.cost.problem else CostModel(each), options, bound=bound
            )
            for each in problems
        ]
        # Rivals flush, as who does without our policy would.
        first = self.contests[0]
        self.flushing = (
            first
            if options.policy == "flush"
            else Contest(first.cost, options.with_policy("flush"), bound=bound)
        )

    def _propose(self) -> Iterator[Progress]:
        """What planners propose, those first that rivals are."""
        if self.options.baselines:
            for planner in (DATA_PARALLEL, *LINEAR_PLANNERS):
                yield from self._watch("rivals", 0.0, 0.3, self.flushing.ask(planner))
        auto = self.options.planner == "auto"
        for contest in self.contests:
            for planner in self._list_starters() if auto else (self.options.planner,):
                yield from self._watch("proposals", 0.3, 0.4, contest.ask(planner))

    def _merge_best(self) -> float:
        lists = [each for one in self.contests for each in one.shortlist_by_planner.values()]
        return min((each.step_s for each in lists), default=float("inf"))

    def _list_starters(self) -> tuple[str, ...]:
        if self.cost.problem.num_nodes > MAX_STARTER_NODES:
            return DATA_PARALLEL, "equal", "graph"
        return STARTERS

    def _merge(self) -> Shortlist:
        """What may become the plan: of the planner that was asked for, or of all under auto."""
        planner = self.options.planner
        if not self.contests:
            return Shortlist()
        return self.contest.merge(None if planner == "auto" else (planner, IMPROVED))

    def _simplify(self) -> Iterator[None]:
        """The best draft with fewer stages, where that costs nothing."""
        found = self._merge()
        if found.best is not None and self.contest.judge.is_step:
            simpler = simplify_draft(
                self.contest.cost, found.list_drafts()[0], found.step_s * (1 + TIE)
            )
            yield from self.contest.drive(IMPROVED, simpler)

    def _enlarge(self, stages: StageGraph) -> StageGraph:
        enlarged = enlarge_stages(self.contest.cost.problem, stages)
        return enlarged if enlarged is stages else choose_sharing(self.cost, enlarged)

    def _schedule(self, stages: StageGraph, effort: float) -> Scheduled:
        return schedule_stages(self.cost, stages, self.options, effort=effort * self.options.effort)

    def _schedule_finalists(self) -> Iterator[None]:
        """The best of the finalists under their own best schedules, the simplest of equal ones."""
        found = self._merge()
        graphs = found.list_finalists()
        if self.options.objective != "throughput":
            graphs = graphs[:1]
        ready: list[tuple[StageGraph, Scheduled]] = []
        for stages in map(self._enlarge, graphs):
            try:
                ready.append((stages, self._schedule(stages, FINAL_EFFORT)))
            except (NoFeasiblePlan, InvalidOption):
                if len(graphs) == 1:
                    raise
            yield
        for stages, _ in sorted(ready, key=_measure_step)[:2]:
            ready.append((stages, self._schedule(stages, WINNER_EFFORT)))
            yield
        if ready:
            self._final = pick_simplest(ready)

    def _schedule_rivals(self) -> Iterator[None]:
        """Baselines with their own best schedules; the plan of auto is never worse than these."""
        yield from self._schedule_replicas()
        linear = self.flushing.merge((DATA_PARALLEL, *LINEAR_PLANNERS))
        cost, options = self.flushing.cost, self.flushing.options
        judge = Judge(cost, options, sequential=True)
        chained = Contest(cost, options, judge=judge, bound=self.bound)
        for draft in linear.list_drafts()[: 4 * NUM_STARTS]:
            chained.consider(chained.shortlist_by_planner.setdefault(LINEAR, Shortlist()), draft)
            yield
        plans = self._one_stage
        for name, found in (
            (LINEAR, linear),
            (SEQUENTIAL, chained.merge()),
        ):
            if found.best is None:
                continue
            stages = enlarge_stages(cost.problem, found.best)
            with suppress(NoFeasiblePlan, SearchLimit, InvalidOption):
                ready = schedule_stages(
                    self.cost,
                    stages,
                    options,
                    effort=RIVAL_EFFORT * self.options.effort,
                    sequential=name == SEQUENTIAL,
                )
                self.rivals[name] = ready
                if name != SEQUENTIAL:
                    plans.append((stages, ready))
            yield
        may_share = [name for name, level in LEVEL_BY_RIVAL.items() if level in self._levels]
        for name in (LINEAR, SEQUENTIAL):
            # One stage is a linear cut and a sequential pipeline, too.
            known = [self.rivals[each] for each in (name, *may_share) if each in self.rivals]
            if known:
                self.rivals[name] = min(known, key=lambda each: each.prediction.step_s)
        may_win = self.options.planner == "auto" and self.options.objective == "throughput"
        if may_win and self.options.policy == "flush" and self._final is not None:
            self._final = pick_simplest([self._final, *plans])

    @property
    def _levels(self) -> tuple[ZeroLevel, ...]:
        return self.flushing.cost.problem.zero_levels

    def _schedule_replicas(self) -> Iterator[None]:
        """Data parallelism at each level of ZeRO that people use, whatever the plan may."""
        problem, options = self.flushing.cost.problem, self.flushing.options
        for name, level in LEVEL_BY_RIVAL.items():
            own = CostModel(dataclasses.replace(problem, zero_levels=(level,)))
            contest = Contest(own, options, bound=self.bound)
            yield from contest.ask(DATA_PARALLEL)
            best = contest.merge().best
            if best is None:
                continue
            with suppress(NoFeasiblePlan, SearchLimit, InvalidOption):
                stages = set_level(enlarge_stages(problem, best), level)
                self.rivals[name] = schedule_stages(
                    self.cost, stages, options, effort=RIVAL_EFFORT * self.options.effort
                )
                if level in self._levels:
                    self._one_stage.append((stages, self.rivals[name]))

    def _compare_policies(self) -> Iterator[None]:
        """What asynchronous policies would give for the same stages."""
        yield
        if self._final is None or self._final[1].policy.name != "flush":
            return
        stages, ready = self._final
        if count_tasks(ready.priced, allow_split=True) <= MAX_OFFER_TASKS:
            self.offers = offer_policies(
                self.cost, stages, self.options, effort=OFFER_EFFORT * self.options.effort
            )


def _measure_step(each: tuple[StageGraph, Scheduled]) -> float:
    return each[1].prediction.step_s


def pick_simplest(plans: list[tuple[StageGraph, Scheduled]]) -> tuple[StageGraph, Scheduled]:
    """The fastest plan; of those within TIE of it, the one with the fewest stages, then the least
    memory for what is in flight, then the simplest schedule."""
    limit_s = min(map(_measure_step, plans)) * (1 + TIE)

    def weigh(each: tuple[StageGraph, Scheduled]) -> tuple[int, int, int, float]:
        stages, ready = each
        name = ready.schedule
        rank = SCHEDULE_ORDER.index(name) if name in SCHEDULE_ORDER else len(SCHEDULE_ORDER)
        peak = max(ready.prediction.peak_bytes_by_device)
        return len(stages.stages), peak, rank, ready.prediction.step_s

    return min((each for each in plans if _measure_step(each) <= limit_s), key=weigh)


def refuse_time(options: SearchOptions) -> SearchLimit:
    """The error when the guard fired before anything was found."""
    return SearchLimit(
        f"The clock ended the search after {options.time_limit_s:g} s, before anything that fits"
        " was found.",
        remedy="Leave out --time-limit, or lower --effort: the search ends by itself.",
    )
