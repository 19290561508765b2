# %% [markdown]
# # A training loop of one's own
# `Pipeline` is one rank's part of a plan. Under `torchrun --nproc-per-node N` with a plan for N
# devices every process runs this file; alone, it is a run of one rank.

# %%
from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import graphplan as gp
from graphplan_runtime import Pipeline


def inputs(batch_size: int) -> tuple[torch.Tensor, ...]:
    """What the model reads, then the target."""
    return torch.randn(batch_size, 16), torch.randn(batch_size, 1)


def loss(output: torch.Tensor, batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """Against the last tensor of the batch."""
    return nn.functional.mse_loss(output, batch[-1])


# %% [markdown]
# ## Capture and plan
# Every rank captures the model; one of them searches, as all must have the same plan.

# %%
num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
if num_ranks > 1:
    dist.init_process_group("gloo")
else:
    store = f"file://{Path('store').resolve()}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
captured = gp.capture(model, inputs, loss=loss)
options = gp.SearchOptions(batch_size=8, micro_batch_sizes=(2,), objective="memory")
if dist.get_rank() == 0:
    gp.save(gp.search(captured, gp.cluster("cpu", gpus=num_ranks), options), "plan.json")
dist.barrier()
plan = gp.load("plan.json")

# %% [markdown]
# ## Train
# Every rank gives every batch to `step`, the same one, and gets the loss of the whole batch. The
# last batch has five samples, which four micro-batches do not divide.

# %%
pipeline = Pipeline(plan, captured, optimizer=lambda weights: torch.optim.AdamW(weights, lr=1e-2))
torch.manual_seed(1)
losses = [pipeline.step(inputs(size)) for size in (8, 8, 8, 5)]
saved = pipeline.save(Path("checkpoints"))
print([round(each, 3) for each in losses], saved.name)
dist.destroy_process_group()
