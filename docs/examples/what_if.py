"""What would the same stages do with another batch, schedule or cluster?"""

from __future__ import annotations

import torch
from torch import nn

import graphplan as gp

with torch.device("meta"):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(8)))

captured = gp.capture(
    model,
    lambda batch_size: (torch.randn(batch_size, 4096),),
    loss=lambda output, _: output.square().mean(),
)
summit = gp.cluster("summit", gpus=4)
options = gp.SearchOptions(batch_size=512, planner="chain", effort=0.5)
plan = gp.search(captured, summit, options)
print(f"as planned: {plan.prediction.step_s * 1e3:.2f} ms")

for schedule in ("gpipe", "1f1b", "zero-bubble"):
    timeline = gp.whatif(plan, schedule=schedule)
    print(f"{schedule}: {timeline.makespan_s * 1e3:.2f} ms, bubble {timeline.bubble:.1%}")

larger = gp.whatif(plan, batch_size=2048)
print(f"batch 2048: {larger.samples_per_s:,.0f} samples/s")

elsewhere = gp.whatif(plan, graph=captured.graph, cluster=gp.cluster("dgx-h100", gpus=4))
print(f"on H100: {elsewhere.makespan_s * 1e3:.2f} ms")
