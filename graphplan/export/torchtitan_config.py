"""A graphplan plan as a configuration of torchtitan 0.3, written by `graphplan export`:

    TORCHTITAN_BASE=llama3:llama3_8b PYTHONPATH=. torchrun --nproc-per-node N \\
        -m torchtitan.train --module planned --config planned

TORCHTITAN_BASE names the module and the configuration of the model that was planned. A config file
of your own may call `apply_plan` instead. Everything that the plan says is in planned.json.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def planned() -> Any:
    """The configuration that TORCHTITAN_BASE names, changed to the plan."""
    module, _, name = os.environ.get("TORCHTITAN_BASE", "").partition(":")
    if not module or not name:
        raise ValueError("Set TORCHTITAN_BASE=module:config, for example llama3:llama3_8b.")
    path = module if "." in module else f"torchtitan.models.{module}.config_registry"
    return apply_plan(getattr(importlib.import_module(path), name)())


def apply_plan(config: Any) -> Any:
    """The same configuration with the plan's stages, order, degrees and recomputation."""
    from torchtitan.distributed.activation_checkpoint import FullAC

    said = json.loads((HERE / "planned.json").read_text())
    num_layers = len(config.model_spec.model.layers)
    if num_layers != said["num_layers"]:
        raise ValueError(
            f"The model has {num_layers} layers, the plan {said['num_layers']}: plan this model."
        )
    pipelined = said["parallelism"]["pipeline_parallel_degree"] > 1
    again = said["recompute"] == "full"
    return dataclasses.replace(
        config,
        parallelism=dataclasses.replace(
            config.parallelism,
            **said["parallelism"],
            pipeline_parallel_schedule="Interleaved1F1B" if has_turns(said) else "1F1B",
            pipeline_parallel_schedule_csv=str(HERE / "schedule.csv") if pipelined else "",
        ),
        training=dataclasses.replace(config.training, **said["training"]),
        activation_checkpoint=FullAC.Config() if again else None,
    )


def has_turns(said: dict[str, Any]) -> bool:
    """Whether a rank has several stages."""
    parallelism = said["parallelism"]
    parts: int = len(parallelism["module_fqns_per_model_part"])
    return bool(parts > parallelism["pipeline_parallel_degree"])
