"""A model file with a fault that can be set: what one rank does in a task or in another phase."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH = 8
IN_A_TASK = ("raise", "memory", "infinite", "kill", "stop", "exit", "hang", "compile")
NUM_CAPTURED = 3
"""Calls of the faulty op while the model is captured."""


class Trip(torch.autograd.Function):
    """The identity, until its n-th call on the rank of the fault."""

    num_calls = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fault: str, call: int) -> torch.Tensor:
        Trip.num_calls += 1
        if Trip.num_calls == call and fault in IN_A_TASK:
            commit_fault(fault)
        if fault == "reference" and is_rank(0) and Trip.num_calls > NUM_CAPTURED:
            work_for(1.5)
        is_infinite = fault == "infinite" and Trip.num_calls >= call
        return x * float("inf") if is_infinite and "FAULT_OFF" not in os.environ else x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None, None


def commit_fault(fault: str) -> None:
    """Whatever may go wrong; a tool may ask when, or that it should not."""
    if os.environ.get("FAULT_OFF"):
        return
    if clock := os.environ.get("FAULT_CLOCK"):
        Path(clock).write_text(str(time.time()))
    if fault == "raise":
        raise ValueError("this stage is broken")
    if fault == "memory":
        torch.empty(1 << 50)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "exit":
        os._exit(0)
    while fault.startswith("hang"):
        time.sleep(1)
    if fault == "compile":
        # As a compiler does that is another process.
        code = "import time; end = time.time() + 9\nwhile time.time() < end: pass"
        subprocess.run([sys.executable, "-c", code], check=True)


def work_for(seconds: float) -> None:
    """Compute, as a large model does in one process."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


class Chain(nn.Module):
    """Two blocks; the fault is in the second one."""

    def __init__(self, fault: str, call: int) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, WIDTH)
        self.two = nn.Linear(WIDTH, WIDTH)
        self.fault, self.call = fault, call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.one(x))
        made: torch.Tensor = self.two(Trip.apply(x, self.fault, self.call))  # type: ignore[no-untyped-call]
        return made


class Longer(Chain):
    """One block more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(super().forward(x))


def is_rank(number: int) -> bool:
    return os.environ.get("RANK") == str(number)


def build(fault: str = "none", call: int = 9) -> nn.Module:
    if fault == "model" and is_rank(1):
        return Longer("none", 0)
    if fault == "hang-build" and is_rank(1):
        commit_fault(fault)
    if fault == "hang-save" and is_rank(1):
        os.fsync = lambda fd: commit_fault(fault)
    if fault == "jump" and is_rank(1):  # A clock that is set while the run goes on.
        real = time.time
        time.time = lambda: real() + (-1e6 if Trip.num_calls % 2 else 1e9)
    return Chain(fault, call)


def inputs(batch_size: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch_size, WIDTH), "target": torch.randn(batch_size, WIDTH)}


def data(batch_size: int, fault: str = "none") -> Iterator[dict[str, torch.Tensor]]:
    for step in itertools.count():
        if fault == "hang-data" and step == 2 and is_rank(1):
            commit_fault(fault)
        batch = inputs(batch_size)
        if fault == "nan-data" and step == 2:
            batch["x"] = batch["x"] * float("nan")
        yield batch


def optimizer(parameters: list[nn.Parameter], sgd: int = 0) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1) if sgd else torch.optim.Adam(parameters, lr=1e-3)


def loss(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return functional.mse_loss(output, batch["target"])
