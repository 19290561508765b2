"""Diagnosis: what `graphplan doctor` finds on a machine, as a file that can be sent to others."""

from __future__ import annotations

from typing import Literal

from graphplan.nouns.base import Noun

Verdict = Literal["fine", "odd", "failed", "left out"]


class Finding(Noun, frozen=True, kw_only=True):
    """One thing that was looked at."""

    about: str
    verdict: Verdict
    text: str
    remedy: str = ""


class KernelFigure(Noun, frozen=True, kw_only=True):
    """An op alone on the first device, forward and backward."""

    op: str
    measured_s: float
    predicted_s: float | None = None
    """By the laws of the device type; None where the device has no hardware file."""


class PairFigure(Noun, frozen=True, kw_only=True):
    """Messages from one device to another, nothing else on the links."""

    src: int
    dst: int
    latency_s: float
    bandwidth_bytes_per_s: float


class CollectiveFigure(Noun, frozen=True, kw_only=True):
    """A sum over all devices."""

    bytes: int
    measured_s: float
    predicted_s: float
    """By the links of the measured cluster."""


class GroupFigure(Noun, frozen=True, kw_only=True):
    """What communicators cost a rank, the mean of them."""

    count: int
    seconds: float
    device_bytes: int | None = None
    """None where the device does not tell its memory."""


class TrainingFigure(Noun, frozen=True, kw_only=True):
    """A few steps of a small model in stages, beside one process."""

    num_stages: int
    largest_loss_difference: float
    largest_parameter_difference: float
    step_s: float
    predicted_step_s: float


class Diagnosis(Noun, frozen=True, kw_only=True):
    """All that was found; figures are () where nothing was measured."""

    format: Literal["graphplan/diagnosis"] = "graphplan/diagnosis"
    version: Literal[1] = 1
    machine: dict[str, str]
    """Versions and names: python, torch, graphplan, system, driver, …"""
    device: str
    """Kind of the devices, as torch calls it."""
    devices: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    kernels: tuple[KernelFigure, ...] = ()
    groups: GroupFigure | None = None
    pairs: tuple[PairFigure, ...] = ()
    crowded_bytes_per_s: float | None = None
    """Of a device that sends to the next one while all others do so, too."""
    collectives: tuple[CollectiveFigure, ...] = ()
    training: TrainingFigure | None = None

    @property
    def is_well(self) -> bool:
        """Whether nothing failed."""
        return all(each.verdict != "failed" for each in self.findings)
