"""Plan a two-tower model for four GPUs that are not there, and read the plan."""

from __future__ import annotations

import torch
from torch import nn

import graphplan as gp


class TwoTowers(nn.Module):
    """Two stacks of layers that meet at the end."""

    def __init__(self, width: int = 2048, depth: int = 6) -> None:
        super().__init__()
        self.left, self.right = (
            nn.Sequential(*(nn.Linear(width, width) for _ in range(depth))) for _ in range(2)
        )
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Class scores of a pair."""
        scores: torch.Tensor = self.head(torch.cat([self.left(x), self.right(y)], dim=-1))
        return scores


def make_inputs(batch_size: int) -> tuple[torch.Tensor, ...]:
    """One batch."""
    return torch.randn(batch_size, 2048), torch.randn(batch_size, 2048)


with torch.device("meta"):  # no memory is needed to plan
    model = TwoTowers()

captured = gp.capture(model, make_inputs, loss=lambda output, _: output.square().mean())
options = gp.SearchOptions(batch_size=1024, effort=0.5)
plan = gp.search(captured, gp.cluster("summit", gpus=4), options)

print(f"{len(plan.stages.stages)} stages, {plan.prediction.step_s * 1e3:.2f} ms a step")
print(f"no plan is faster than {plan.bound.step_s * 1e3:.2f} ms: {plan.bound.proof}")
for name, step_s in plan.baselines.items():
    print(f"{step_s / plan.prediction.step_s:.2f}x over {name}")
for finding in gp.explain(plan)[:3]:
    print(f"{finding.title}. {finding.text}")

gp.check(plan)  # raises if any rule is broken
gp.save(plan, "plan.json")
assert gp.load("plan.json") == plan
