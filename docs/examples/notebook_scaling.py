# %% [markdown]
# # How does a multi-branch model scale?
# Plans for 2, 4 and 8 GPUs, the lower bound beside every plan, and a picture.

# %%
from __future__ import annotations

import torch
from torch import nn

import graphplan as gp


class Branches(nn.Module):
    """Four branches of equal depth, summed."""

    def __init__(self, num_branches: int = 4, depth: int = 4, width: int = 2048) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
            for _ in range(num_branches)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all branches."""
        return torch.stack([branch(x) for branch in self.branches]).sum(0)


with torch.device("meta"):
    model = Branches()
captured = gp.capture(
    model,
    lambda batch_size: (torch.randn(batch_size, 2048),),
    loss=lambda output, _: output.square().mean(),
)

# %% [markdown]
# ## Search for each size

# %%
sizes = (2, 4, 8)
plans = {
    gpus: gp.search(
        captured,
        gp.cluster("summit", gpus=gpus),
        gp.SearchOptions(batch_size=128 * gpus, effort=0.5),
    )
    for gpus in sizes
}
for gpus, plan in plans.items():
    print(f"{gpus} GPUs: {plan.prediction.samples_per_s:,.0f} samples/s, gap {plan.gap:.1%}")

# %% [markdown]
# ## Draw it

# %%
import matplotlib  # noqa: E402

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.plot(sizes, [p.prediction.samples_per_s for p in plans.values()], marker="o", label="plan")
axes.plot(
    sizes,
    [p.training.batch_size / p.bound.step_s for p in plans.values()],
    linestyle="--",
    label="bound",
)
axes.set(xlabel="GPUs", ylabel="samples / s", xticks=sizes)
axes.legend()
figure.savefig("scaling.png")
