"""Capture a Llama-3-70B-shaped model without allocating it; print memory, seconds and ops.

    python tools/capture_large.py [--layers 80] [--sequence 4096] [--json]

The model is built from its transformers config; nothing is downloaded. Memory is the growth of the
process's peak from before the model is built (imports done) to after the capture.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from graphplan.frontend import trace_module
from graphplan.frontend.sparing import sparing_build
from graphplan.nouns.opgraph import OpGraph


def build_llama(layers: int) -> nn.Module:
    """The shape of Llama-3-70B; fewer layers for a quick look."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=layers,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=8192,
        use_cache=False,
    )
    make: Any = LlamaForCausalLM
    return make(config).train()  # type: ignore[no-any-return]


def peak_mb() -> float:
    """The largest memory that this process has had."""
    scale = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def capture_llama(layers: int, sequence: int) -> OpGraph:
    """The graph of such a model."""
    with sparing_build():
        model = build_llama(layers)
    return trace_module(model, partial(make_words, sequence), name="Llama-3-70B").graph


def make_words(sequence: int, batch_size: int) -> dict[str, Tensor]:
    """A batch to capture with."""
    words = torch.zeros(batch_size, sequence, dtype=torch.int64)
    return {"input_ids": words, "labels": words.clone()}


def measure(layers: int, sequence: int) -> dict[str, Any]:
    """Build and capture, with figures."""
    import transformers.models.llama.modeling_llama  # noqa: F401  (imports are not measured)

    before_mb, start = peak_mb(), time.perf_counter()
    with sparing_build():
        model = build_llama(layers)
    built = time.perf_counter()
    graph = trace_module(model, partial(make_words, sequence), name="Llama-3-70B").graph
    end = time.perf_counter()
    return {
        "parameters": sum(each.spec.num_elements(1) for each in graph.weights if each.trainable),
        "ops": len(graph.ops),
        "build_s": round(built - start, 1),
        "capture_s": round(end - built, 1),
        "cpu_s": round(time.process_time(), 1),
        "peak_growth_mb": round(peak_mb() - before_mb),
        "peak_mb": round(peak_mb()),
        "batch": graph.batch,
        "fingerprint": graph.fingerprint,
    }


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    facts = measure(options.layers, options.sequence)
    if options.json:
        print(json.dumps(facts))
        return
    print(f"{facts['parameters'] / 1e9:.1f} billion parameters, {facts['ops']:,} ops")
    print(f"built in {facts['build_s']} s, captured in {facts['capture_s']} s")
    print(f"memory grew by {facts['peak_growth_mb']} MB to {facts['peak_mb']} MB at the peak")
    print(f"batch {facts['batch']}, fingerprint {facts['fingerprint']}")


if __name__ == "__main__":
    main()
