"""Time capture beside a plain torch.export of the same module, and count what is traced once.

    python tools/bench_capture.py [name ...] [--rounds 2]

Processor time in one process; the least of the rounds, after one that is not counted (it imports
parts of torch). `export` is torch.export.export(strict=False) with fixed sizes on fake tensors,
`in full` a capture that traces every block; `same` says whether its fingerprint is that of the
capture with the shortcut.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphplan.frontend import attempt, load_model_file, trace_module
from graphplan.frontend.attempt import quiet_torch
from graphplan.frontend.example import make_example
from graphplan.frontend.fakes import fake_batch, faked_module, make_fake_mode
from graphplan.frontend.repeats import Apart
from graphplan.frontend.sparing import sparing_build
from graphplan.frontend.withloss import WithLoss
from tools.capture_large import build_llama

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def build_mixtral() -> nn.Module:
    """The shape of Mixtral 8x7B."""
    import transformers

    settings: Any = transformers.MixtralConfig
    make: Any = transformers.MixtralForCausalLM
    config = settings(use_cache=False, experts_implementation="grouped_mm")
    return make(config).train()  # type: ignore[no-any-return]


def word_inputs(batch_size: int) -> dict[str, torch.Tensor]:
    """Words and what comes next."""
    words = torch.zeros(batch_size, 512, dtype=torch.int64)
    return {"input_ids": words, "labels": words.clone()}


LARGE: dict[str, Callable[[], nn.Module]] = {
    "Llama-3-70B": lambda: build_llama(80),
    "Mixtral 8x7B": build_mixtral,
}


def make_subject(name: str) -> tuple[nn.Module, Any, Any]:
    """A module without memory, its inputs and its loss."""
    with sparing_build():
        if name in LARGE:
            return LARGE[name](), word_inputs, None
        file = load_model_file(EXAMPLES / f"{name}.py")
        return file.build(), file.inputs, file.loss


def time_export(name: str) -> float:
    """Processor time of torch.export alone."""
    module, inputs, loss = make_subject(name)
    mode = make_fake_mode()
    with mode:
        example = make_example(inputs)
    whole = module if loss is None else WithLoss(module, loss, example)
    args, kwargs = fake_batch((example.args, example.kwargs), mode)
    with faked_module(whole, mode), quiet_torch():
        start = time.process_time()
        torch.export.export(whole, args, kwargs, strict=False)
        return time.process_time() - start


def time_capture(name: str, *, once: bool) -> tuple[float, int, str]:
    """Processor time of a capture with building, its ops and its fingerprint."""
    start = time.process_time()
    module, inputs, loss = make_subject(name)
    patch = mock.patch.object(attempt, "Apart", lambda is_off: replace(Apart(), is_off=True))
    with patch if not once else mock.patch.object(attempt, "Apart", Apart):
        graph = trace_module(module, inputs, loss=loss).graph
    return time.process_time() - start, len(graph.ops), graph.fingerprint


def measure(name: str, rounds: int) -> str:
    """One line of the table."""
    time_capture(name, once=True)
    exports = min(time_export(name) for _ in range(rounds))
    fast, num_ops, fingerprint = min(time_capture(name, once=True) for _ in range(rounds))
    full, _, other = time_capture(name, once=False)
    same = "yes" if fingerprint == other else "NO"
    ratio = fast / exports
    return (
        f"| {name} | {num_ops:,} | {exports:.2f} | {fast:.2f} | {ratio:.2f} | {full:.2f} | {same} |"
    )


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    known = [*sorted(path.stem for path in EXAMPLES.glob("*.py")), *LARGE]
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(known)}")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    print("| model | ops | export CPU s | capture CPU s | ratio | in full CPU s | same |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for name in options.names or known:
        print(measure(name, options.rounds), flush=True)


if __name__ == "__main__":
    main()
