"""StageStore: the weight versions, gradients and optimizer state of one stage during a replay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from graphplan.nouns.policy import DirectionForm
from graphplan.staleness.models import Value
from graphplan.staleness.optimizers import Optimizer
from graphplan.staleness.versions import Read


class Flight(NamedTuple):
    """A micro-batch between its F and its B."""

    read: Read
    weights: Value | None
    """None when B reads others."""
    saved: Any

    @property
    def keeps(self) -> bool:
        """Whether B uses the weights of F."""
        return self.weights is not None


@dataclass
class StageStore:
    """Mutable state of a stage; `version` counts its updates."""

    start: Value
    optimizer: Optimizer
    form: DirectionForm = field(kw_only=True)
    next_forward: int = field(default=0, init=False)
    """The first micro-batch that has not run F."""
    version: int = field(default=0, init=False)
    peak: int = field(default=1, init=False)
    flights: dict[int, Flight] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.weights_by_version: dict[int, Value] = {0: self.start}
        self.state = self.optimizer.start_state()
        self.displacement: Value | None = None
        self.noted: dict[int, Value] = {}
        self.total: Value | None = None
        self.num_added = 0

    @property
    def newest(self) -> tuple[int, Value]:
        """The current version and its weights."""
        return self.version, self.weights_by_version[self.version]

    def read_weights(self, read: Read) -> Value:
        """The weights of a read; extrapolated ones start from the current version."""
        weights = self.weights_by_version[read.version]
        if not read.distance:
            return weights
        assert read.version == self.version, "predictions start from the current version"
        if self.form == "displacement":
            moved = self.displacement
            return weights if moved is None else weights + read.distance * moved
        direction = self.optimizer.find_direction(self.state)
        if direction is None:
            return weights
        return weights - self.optimizer.rate * read.distance * direction

    def hold(self, m: int, flight: Flight, *, keep: bool) -> None:
        """Hold what B of a micro-batch needs, with the weights of F or without them."""
        self.flights[m] = flight if keep else flight._replace(weights=None)
        self.count_weights({flight.read})

    def note_gradient(self, m: int, gradient: Value) -> None:
        """The weights' gradient of a micro-batch; its weight-gradient task adds it."""
        self.noted[m] = gradient
        del self.flights[m]

    def add_gradient(self, m: int, period: int) -> bool:
        """Add a noted gradient; the last one of a period makes an update."""
        part = self.noted.pop(m)
        self.total = part if self.total is None else self.total + part
        self.num_added += 1
        if self.num_added < period:
            return False
        before = self.weights_by_version[self.version]
        mean = self.total / period if period > 1 else self.total
        after, self.state = self.optimizer.take_step(before, mean, self.state)
        self.displacement = after - before
        self.version += 1
        self.weights_by_version[self.version] = after
        self.total, self.num_added = None, 0
        return True

    def replace_newest(self, weights: Value) -> None:
        """Put other weights in the place of the current version."""
        self.weights_by_version[self.version] = weights

    def drop_below(self, version: int) -> None:
        """Forget older versions that no flight holds; extrapolated weights are its own."""
        reads = [flight.read for flight in self.flights.values() if flight.keeps]
        kept = {read.version for read in reads if not read.distance} | {self.version}
        for each in [v for v in self.weights_by_version if v < version and v not in kept]:
            del self.weights_by_version[each]
        self.count_weights(set())

    def count_weights(self, used: set[Read]) -> None:
        """Note how many weights there are: versions, and extrapolated ones held or in use."""
        reads = used | {flight.read for flight in self.flights.values() if flight.keeps}
        extrapolated = sum(1 for read in reads if read.distance)
        self.peak = max(self.peak, len(self.weights_by_version) + extrapolated)
