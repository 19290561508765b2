"""Open exported Megatron arguments with Megatron-Core: the layout and the configuration.

With the file as argument. Prints the layers of every pipeline rank as Megatron counts them. Nothing
is trained: Megatron's communication needs GPUs.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import torch
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
from megatron.core.transformer.transformer_config import TransformerConfig


def main() -> None:
    """Read, validate, print."""
    words = shlex.split(Path(sys.argv[1]).read_text().split("MEGATRON_ARGS=(")[1].rstrip(")\n"))
    given = dict(zip(words, [*words[1:], ""], strict=True))
    layers, ranks = int(given["--num-layers"]), int(given["--pipeline-model-parallel-size"])
    layout = PipelineParallelLayerLayout(given["--pipeline-model-parallel-layout"], ranks)
    layout.validate_layer_layout(layers, None)
    again = "--recompute-granularity" in given
    virtual = layout.virtual_pipeline_model_parallel_size
    TransformerConfig(
        num_layers=layers,
        hidden_size=64,
        num_attention_heads=4,
        pipeline_model_parallel_size=ranks,
        virtual_pipeline_model_parallel_size=virtual if virtual > 1 else None,
        pipeline_model_parallel_layout=given["--pipeline-model-parallel-layout"],
        pipeline_dtype=torch.float32,
        recompute_granularity=given["--recompute-granularity"] if again else None,
        recompute_method=given["--recompute-method"] if again else None,
        recompute_num_layers=int(given["--recompute-num-layers"]) if again else None,
    )
    held = (
        [
            [layout.get_layer_id_list(vp_stage=v, pp_rank=p) for v in range(virtual)]
            for p in range(ranks)
        ]
        if virtual == 1
        else layout.pretty_repr().splitlines()[1:]
    )
    sys.stdout.write(json.dumps({"loaded": held}) + "\n")


if __name__ == "__main__":
    main()
