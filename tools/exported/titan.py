"""Train two steps of an exported torchtitan folder with torchtitan's own pipeline helpers on gloo.

Under torchrun, with the folder as argument. Prints the largest difference of a gradient to one
process. torchtitan's models need a GPU's compiler; a model with their names takes their place, and
replicas are left out, since its sharding needs its own modules.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed import pipeline_parallel

from tools.exported.layers import WIDTH, WORDS, Block, draw_batch, measure_loss

RATE = 0.1


@dataclasses.dataclass
class Config:
    """The parts of a trainer's configuration that a plan changes."""

    model_spec: Any
    parallelism: ParallelismConfig
    training: TrainingConfig
    activation_checkpoint: Any = None


class Decoder(nn.Module):
    """A model with the names of torchtitan's, of which parts may be missing."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleDict({str(i): Block() for i in range(num_layers)})
        self.norm, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Any:
        for part in (self.tok_embeddings, *self.layers.values(), self.norm, self.lm_head):
            x = x if part is None else part(x)
        return x


def main() -> None:
    """One rank."""
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    apply_plan = importlib.import_module("planned").apply_plan

    said = json.loads((folder / "planned.json").read_text())
    spec = types.SimpleNamespace(model=types.SimpleNamespace(layers=range(said["num_layers"])))
    config = apply_plan(Config(spec, ParallelismConfig(), TrainingConfig()))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    whole = Decoder(said["num_layers"])
    parallelism, batch = config.parallelism, config.training.local_batch_size
    mesh = init_device_mesh("cpu", (parallelism.pipeline_parallel_degree,), mesh_dim_names=("pp",))
    stages, parts = pipeline_parallel._pipeline_module_split(
        copy.deepcopy(whole),
        mesh,
        parallelism.pipeline_parallel_schedule,
        torch.device("cpu"),
        parallelism.module_fqns_per_model_part,
    )
    count = batch // parallelism.pipeline_parallel_microbatch_size
    schedule = pipeline_parallel._build_pipeline_schedule(
        parallelism=parallelism,
        local_batch_size=batch,
        stages=stages,
        loss_fn=lambda output, targets: (measure_loss(output, targets) / count, {}),
    )
    worst = 0.0
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], RATE)
    alone = torch.optim.SGD(whole.parameters(), RATE)
    for step in range(2):
        tokens, targets = draw_batch(batch, step)
        fed = (tokens,) if any(stage.is_first for stage in stages) else ()
        asked = {"target": targets, "losses": []} if any(s.is_last for s in stages) else {}
        schedule.step(*fed, **asked)
        for x, y in zip(tokens.chunk(count), targets.chunk(count), strict=True):
            (measure_loss(whole(x), y) / count).backward()
        expected = dict(whole.named_parameters())
        for part in parts:
            for name, parameter in part.named_parameters():
                worst = max(worst, float((parameter.grad - expected[name].grad).abs().max()))
        for each in (optimizer, alone):
            each.step()
            each.zero_grad()
    sys.stdout.write(json.dumps({"difference": worst}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
