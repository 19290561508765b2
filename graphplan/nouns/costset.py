"""CostSet: measured tables with the graphs and devices that they belong to, to learn costs from."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from graphplan.nouns.base import Noun
from graphplan.nouns.cluster import DeviceType
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.table import ProfileTable


class CostSample(Noun, frozen=True, kw_only=True):
    """One graph with its measured table."""

    model: str
    """Samples of one model, such as two sizes of a GPT, are never split between training and
    validation."""
    graph: OpGraph
    table: ProfileTable

    def __post_init__(self) -> None:
        if self.table.graph != self.graph.fingerprint:
            raise ValueError(
                f"the table of {self.model!r} is for the graph {self.table.graph},"
                f" not for {self.graph.fingerprint}"
            )
        for op in self.graph.ops:
            if op.name not in self.table.row_by_op:
                raise ValueError(f"the table of {self.model!r} has no row for the op {op.name}")


class CostSet(Noun, frozen=True, kw_only=True, dict=True):
    """Samples of many models, and the device types that their tables name."""

    format: Literal["graphplan/costset"] = "graphplan/costset"
    version: Literal[1] = 1
    devices: tuple[DeviceType, ...]
    samples: tuple[CostSample, ...]
    provenance: str = ""

    def __post_init__(self) -> None:
        for sample in self.samples:
            if sample.table.device not in self.device_by_name:
                raise ValueError(
                    f"the table of {sample.model!r} names the device {sample.table.device!r},"
                    " which the set does not describe"
                )

    @cached_property
    def device_by_name(self) -> dict[str, DeviceType]:
        """Device types by name."""
        return {device.name: device for device in self.devices}

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The different models, in the order of their first samples."""
        return tuple(dict.fromkeys(sample.model for sample in self.samples))
