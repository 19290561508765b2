"""Train two steps of an exported DeepSpeed folder on gloo, and compare with one process.

Under torchrun, with the folder as argument. Prints the largest difference of a weight.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import deepspeed
import deepspeed.comm.torch
import torch
from torch import nn

from tools.exported.layers import WIDTH, WORDS, Block, draw_batch, measure_loss

RATE = 0.1


def make_layers(num_entries: int) -> list[nn.Module]:
    """One entry before the layers, one behind."""
    torch.manual_seed(0)
    blocks = [Block() for _ in range(num_entries - 2)]
    return [nn.Embedding(WORDS, WIDTH), *blocks, nn.Linear(WIDTH, WORDS)]


def main() -> None:
    """One rank."""
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    planned = importlib.import_module("planned")

    # The shared-memory operator would be compiled here; gloo does without.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed("gloo")
    config = json.loads((folder / "ds_config.json").read_text())
    num = len(planned.PLANNED["entries"])
    model = planned.PlannedPipeline(layers=make_layers(num), loss_fn=measure_loss)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=optimizer)
    size, count = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    width = planned.PLANNED["replicas"]
    rank = torch.distributed.get_rank() % width
    seeds = [[i * width + r for i in range(2 * count)] for r in range(width)]
    batches = iter([draw_batch(size, seed) for seed in seeds[rank]])
    for _ in range(2):
        engine.train_batch(batches)
    whole = nn.Sequential(*make_layers(num))
    alone = torch.optim.SGD(whole.parameters(), RATE)
    for step in range(2):
        alone.zero_grad()
        for each in seeds:
            for seed in each[step * count : (step + 1) * count]:
                tokens, targets = draw_batch(size, seed)
                (measure_loss(whole(tokens), targets) / (count * width)).backward()
        alone.step()
    first = model.parts[model.stage_id]
    worst = max(
        float((a - b).abs().max())
        for i, layer in enumerate(model.forward_funcs)
        for a, b in zip(layer.parameters(), whole[first + i].parameters(), strict=True)
    )
    sys.stdout.write(json.dumps({"difference": worst}) + "\n")


if __name__ == "__main__":
    main()
