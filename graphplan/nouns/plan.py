"""Plan: all that a runtime, the referee and a reader need, as one JSON file."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from graphplan.errors import InvalidProgram
from graphplan.nouns.base import Noun
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.names import check_label, check_values
from graphplan.nouns.opgraph import BatchKind, MixingKind
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Program, parse_program
from graphplan.nouns.stages import StageGraph, upgrade_stages
from graphplan.nouns.training import Training


class MixedOp(Noun, frozen=True, kw_only=True):
    """An op that mixes samples, with the module that it was written in."""

    op: str
    module: str
    kind: MixingKind


class PlannedModel(Noun, frozen=True, kw_only=True):
    """The model that a plan is for, with its op DAG so that the plan can be judged alone."""

    name: str
    fingerprint: str
    ops: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    """Pairs of positions in `ops`."""
    batch: BatchKind = "dynamic"
    """Whether a batch can be split: `none` means that the inputs have no batch dimension."""
    mixing: tuple[MixedOp, ...] = ()
    """What a split of the batch changes; reports and the reference of a run tell."""

    def __post_init__(self) -> None:
        check_label(self.name)
        check_values(self.ops)
        for src, dst in self.edges:
            if not 0 <= src < dst < len(self.ops):
                raise ValueError(f"op edge {src} -> {dst} does not point to a later op")


class StageLabel(Noun, frozen=True, kw_only=True):
    """How to call a stage when it is shown; nothing but reports reads it."""

    modules: tuple[str, ...]
    """The largest modules that it holds, then those of which it holds a part."""
    num_ops: int
    num_parameters: int
    param_bytes: int


class Bound(Noun, frozen=True, kw_only=True):
    """A value that no plan of the same problem can beat, and what proves it."""

    step_s: float
    proof: str


class Prediction(Noun, frozen=True, kw_only=True):
    """What the simulator says of one step."""

    step_s: float
    samples_per_s: float
    bubble: float
    peak_bytes_by_device: tuple[int, ...]


class PolicyOffer(Noun, frozen=True, kw_only=True):
    """What an asynchronous weight policy would give for a plan's stages, and what it costs."""

    policy: WeightPolicy
    step_s: float
    """Of a batch in the steady state."""
    staleness: int
    """The most updates between a micro-batch's forward and its own update."""
    peak_bytes_by_device: tuple[int, ...]


class Certainty(Noun, frozen=True, kw_only=True):
    """How far learned costs can be trusted."""

    step_uncertainty: float
    """Standard deviation of the log of a whole step's compute: 0.1 is about 10%."""
    extrapolated_ops: int
    """Ops that lie outside the training data."""
    extrapolated_share: float
    """Their share of the seconds of all ops."""
    origin: str
    """What was trained on what, and what was guessed."""


Ended = Literal["", "clock", "user"]
"""Who ended a search before its effort was spent, if anybody did."""


class Provenance(Noun, frozen=True, kw_only=True):
    """How the plan was made. Wall-clock times are left out: same input, same bytes."""

    graphplan: str
    planner: str
    schedule: str
    costs: str
    seed: int
    effort: float = 1.0
    """Counted work of the search, relative to the default."""
    ended: Ended = ""
    options: dict[str, str] = {}
    certainty: Certainty | None = None
    """With learned costs only."""


class Plan(Noun, frozen=True, kw_only=True, dict=True):
    """StageGraph + Program + placement + weight policy + prediction, with the lower bound.

    Version 1 recomputed all ops of a stage or none, and knew neither shards nor buckets.
    """

    older_versions: ClassVar[tuple[int, ...]] = (1,)
    format: Literal["graphplan/plan"] = "graphplan/plan"
    version: Literal[2] = 2
    model: PlannedModel
    cluster: Cluster
    training: Training
    stages: StageGraph
    policy: WeightPolicy
    prices: PricedStages
    program: tuple[str, ...]
    """One line for each device: instructions separated by blanks."""
    prediction: Prediction
    bound: Bound
    baselines: dict[str, float] = {}
    """Step seconds of other planners on the same problem."""
    offers: tuple[PolicyOffer, ...] = ()
    """Asynchronous policies that the same stages could have; none is ever chosen unasked."""
    provenance: Provenance
    labels: tuple[StageLabel, ...] = ()
    """By stage; () when nobody described them."""

    @classmethod
    def upgrade(cls, fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """A plan of version 1."""
        stages = {"stages": upgrade_stages(fields["stages"])} if "stages" in fields else {}
        return fields | stages | {"version": msgspec.Raw(b"2")}

    @property
    def gap(self) -> float:
        """How far the prediction may be from the best possible: step / bound - 1."""
        return self.prediction.step_s / self.bound.step_s - 1 if self.bound.step_s else 0.0

    def parse_program(self) -> Program:
        """The program of the plan as a value; raises InvalidProgram when it is none."""
        try:
            return parse_program("\n".join(self.program))
        except ValueError as error:
            raise InvalidProgram(
                f"The plan's program cannot be read: {error}.",
                remedy="`graphplan check plan.json` tells what else is wrong with it.",
            ) from error
