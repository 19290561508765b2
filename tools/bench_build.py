"""Build large models without memory and compare with the meta device; print a table.

    python tools/bench_build.py [name ...] [--rounds 5] [--json]

Processor seconds of `build()` as the capture runs it, and of the same on torch's meta device, the
smaller of several rounds each, in turns; nothing is downloaded. LoRA needs peft.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from graphplan.frontend.sparing import sparing_build


def build(family: str, kind: str, **config: Any) -> nn.Module:
    """A model of transformers from its config."""
    transformers = importlib.import_module("transformers")
    made = getattr(transformers, f"{family}Config")(**config)
    model: nn.Module = getattr(transformers, f"{family}{kind}")(made)
    return model


def build_llama() -> nn.Module:
    """The shape of Llama-3-8B."""
    return build(
        "Llama",
        "ForCausalLM",
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        use_cache=False,
    )


def build_adapted() -> nn.Module:
    """The same with LoRA on every linear layer."""
    peft = importlib.import_module("peft")
    config = peft.LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model: nn.Module = peft.get_peft_model(build_llama(), config)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Llama-3-8B": build_llama,
    "Llama-3-8B with LoRA": build_adapted,
    "Llama-3-8B in bfloat16": lambda: build_llama().bfloat16(),
    "GPT-2 XL": lambda: build("GPT2", "LMHeadModel", n_embd=1600, n_layer=48, n_head=25),
    "Mixtral 8x7B": lambda: build("Mixtral", "ForCausalLM"),
    "ViT-L": lambda: build(
        "ViT",
        "ForImageClassification",
        hidden_size=1024,
        num_hidden_layers=24,
        intermediate_size=4096,
        num_attention_heads=16,
    ),
    "Swin-T": lambda: build("Swin", "ForImageClassification"),
}


def time_build(make: Callable[[], nn.Module], context: AbstractContextManager[Any]) -> float:
    """Processor seconds of one build."""
    start = time.process_time()
    with context:
        make()
    return time.process_time() - start


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Both ways of one model."""
    make = MODELS[name]
    with torch.device("meta"):
        parameters = sum(each.numel() for each in make().parameters())
    sparing, meta = [], []
    for _ in range(rounds):
        meta.append(time_build(make, torch.device("meta")))
        sparing.append(time_build(make, sparing_build()))
    return {
        "model": name,
        "parameters": parameters,
        "build_s": round(min(sparing), 3),
        "meta_s": round(min(meta), 3),
        "ratio": round(min(sparing) / min(meta), 2),
    }


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    options = parser.parse_args()
    rows = [measure(name, options.rounds) for name in options.names or MODELS]
    if options.json:
        print(json.dumps(rows))
        return
    print("| model | parameters | build CPU s | on meta CPU s | ratio |")
    print("|---|---:|---:|---:|---:|")
    for row in rows:
        print(
            f"| {row['model']} | {row['parameters'] / 1e9:.2f} B | {row['build_s']} |"
            f" {row['meta_s']} | {row['ratio']} |"
        )


if __name__ == "__main__":
    main()
