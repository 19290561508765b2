"""A graphplan plan as a `PipelineModule` of DeepSpeed, written by `graphplan export`:

    from planned import PlannedPipeline
    model = PlannedPipeline(layers=[embed, *blocks, head], loss_fn=loss)
    engine, *_ = deepspeed.initialize(model=model, config="ds_config.json", ...)

`layers` has the entries that planned.json lists: modules, LayerSpecs or TiedLayerSpecs. Under
torchrun or the `deepspeed` launcher, with as many ranks as the plan has devices.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepspeed.pipe import PipelineModule
from deepspeed.runtime.activation_checkpointing import checkpointing

PLANNED = json.loads(Path(__file__).resolve().with_name("planned.json").read_text())


class PlannedPipeline(PipelineModule):  # type: ignore[misc]
    """A PipelineModule whose stages, and what they recompute, are the plan's."""

    def __init__(self, layers: Sequence[Any], **settings: Any) -> None:
        entries, parts = PLANNED["entries"], PLANNED["parts"]
        if len(layers) != len(entries):
            raise ValueError(
                f"The plan has {len(entries)} entries, not {len(layers)}: {', '.join(entries)}."
            )
        # Stages are recomputed as a whole; the first one's inputs need no gradient, which only the
        # non-reentrant checkpoint can take.
        settings.setdefault("activation_checkpoint_func", checkpointing.non_reentrant_checkpoint)
        super().__init__(layers=layers, num_stages=len(parts) - 1, **settings)
        again = PLANNED["recompute"][self.stage_id]
        self.activation_checkpoint_interval = (
            parts[self.stage_id + 1] - parts[self.stage_id] if again else 0
        )

    def _partition_layers(self, method: str = "planned") -> None:
        """DeepSpeed's hook: which entries this rank's stage holds."""
        del method
        self.parts = PLANNED["parts"]
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])
