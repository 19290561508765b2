"""ProfileTable: times and bytes of every op on one device type, at several micro-batch sizes.

Columns run along `batch_sizes`: row.forward_s[j] belongs to batch_sizes[j]. How a table was made
(measured, estimated, learned) is told by `source`; everything after it treats them alike.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from graphplan.nouns.base import MAX_SECONDS, Noun
from graphplan.nouns.cluster import Link
from graphplan.nouns.names import check_values

Source = Literal["measured", "estimated", "learned"]


class OpProfile(Noun, frozen=True, kw_only=True):
    """What one op takes; every tuple has one entry for each batch size of the table."""

    op: str
    forward_s: tuple[float, ...]
    input_grad_s: tuple[float, ...]
    """Backward with respect to the inputs (task kind I); 0 where nothing upstream needs it."""
    weight_grad_s: tuple[float, ...]
    """Backward with respect to the weights (task kind W)."""
    workspace_bytes: tuple[int, ...]
    spread: float = 0.0
    """Interquartile range over the median, the worst of the columns; 0 for estimates."""
    fit_error: float = 0.0
    """Largest relative error of the affine fit over the batch size; 0 with one column."""
    group: str | None = None
    """Ops measured together share this name; the time was divided among them."""
    extrapolated: bool = False
    """Learned costs only: the op is far from everything in the training data."""
    uncertainty: float = 0.0
    """Learned costs only: standard deviation of the log of the op's time, the worst of the columns;
    0.1 means that two times out of three the time is within 10%."""


class Host(Noun, frozen=True, kw_only=True):
    """What ranks that share a host have of it, measured with all of them at work."""

    num_ranks: int
    bandwidth_bytes_per_s: float
    """Of the memory, for one rank."""
    task_s: float
    """What the runtime takes for a task beyond its ops."""
    link: Link
    """Between two ranks."""


class ProfileTable(Noun, frozen=True, kw_only=True, dict=True):
    """The rows of one graph on one device type."""

    format: Literal["graphplan/table"] = "graphplan/table"
    version: Literal[1] = 1
    graph: str
    """Fingerprint of the OpGraph."""
    device: str
    """Name of the device type, as in profiles/hardware."""
    source: Source
    batch_sizes: tuple[int, ...]
    rows: tuple[OpProfile, ...]
    calibration: tuple[float, ...] = ()
    """Whole-model step over the sum of the ops, by batch size; () when not measured. The times in
    the rows are raw; the cost model multiplies them by this ratio."""
    update_s_per_element: float | None = None
    """Step of the model file's own optimizer; None when there is none, or it was not measured."""
    host: Host | None = None
    """Measured tables of devices that share a host; takes the place of the cluster's figures."""
    provenance: str = ""
    step_uncertainty: float = 0.0
    """Learned costs only: standard deviation of the log of a whole step's time."""

    def __post_init__(self) -> None:
        sizes = self.batch_sizes
        if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
            raise ValueError(f"batch_sizes must grow from at least 1, got {list(sizes)}")
        if self.calibration and len(self.calibration) != len(sizes):
            raise ValueError("calibration needs one ratio for each batch size")
        check_values(row.op for row in self.rows)
        if not all(1e-6 < ratio < 1e6 for ratio in self.calibration):
            raise ValueError(f"calibration {list(self.calibration)} is no ratio of two times")
        if not 0 <= (self.update_s_per_element or 0.0) <= MAX_SECONDS:
            raise ValueError(f"update_s_per_element is {self.update_s_per_element}")
        if len({row.op for row in self.rows}) != len(self.rows):
            raise ValueError("two rows describe the same op")
        for row in self.rows:
            columns = (row.forward_s, row.input_grad_s, row.weight_grad_s, row.workspace_bytes)
            if any(len(column) != len(sizes) for column in columns):
                raise ValueError(f"row {row.op!r} needs {len(sizes)} entries in every column")
            if not all(0 <= value <= MAX_SECONDS for column in columns[:3] for value in column):
                raise ValueError(f"row {row.op!r} has a negative or endless time")
            if min(row.workspace_bytes) < 0:
                raise ValueError(f"row {row.op!r} has a negative number of bytes")

    @cached_property
    def row_by_op(self) -> dict[str, OpProfile]:
        """Rows by op name."""
        return {row.op: row for row in self.rows}
