"""A model file with a fault that can be set: what one rank does in the middle of a task."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH = 8


class Trip(torch.autograd.Function):
    """The identity, until its n-th call on the rank of the fault."""

    num_calls = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fault: str, call: int) -> torch.Tensor:
        Trip.num_calls += 1
        if Trip.num_calls == call:
            commit_fault(fault)
        return x * float("inf") if fault == "infinite" and Trip.num_calls >= call else x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None, None


def commit_fault(fault: str) -> None:
    """Whatever may go wrong; a tool may ask when."""
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
    while fault == "hang":
        time.sleep(1)
    if fault == "compile":
        # As a compiler does that is another process.
        code = "import time; end = time.time() + 9\nwhile time.time() < end: pass"
        subprocess.run([sys.executable, "-c", code], check=True)


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


def build(fault: str = "none", call: int = 9) -> nn.Module:
    if fault == "model" and os.environ.get("RANK") == "1":
        return Longer("none", 0)
    return Chain(fault, call)


def inputs(batch_size: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch_size, WIDTH), "target": torch.randn(batch_size, WIDTH)}


def loss(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return functional.mse_loss(output, batch["target"])
