"""Models from outside: the capture equals eager to the last bit, a chain of stages to 1e-6."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from graphplan.frontend import Captured, trace_module
from graphplan.frontend.example import Arguments, split_arguments
from tests.models.zoo import ZOO, Entry
from tests.models.zoo_others import OTHERS
from tests.models.zoo_transformers import TRANSFORMERS
from tests.torch.comparing import assert_same_step, run_cut, run_step
from tests.torch.cuts import chain_cut

NAMES = ("Wav2Vec2 CTC", "ViT", "PatchTST", "LoRA Llama", "GIN", "GAN", "VAE")
"""Those of the larger zoo that are tested here; tools/capture_models.py has them all."""

MODELS = ZOO | {name: (TRANSFORMERS | OTHERS)[name] for name in NAMES}


def eager_loss(entry: Entry, module: nn.Module, batch: Any) -> Any:
    """The loss as a user's training loop computes it."""
    if not isinstance(batch, dict):
        output = module(*batch)
    else:
        names = inspect.signature(module.forward).parameters
        has_rest = any(each.kind is each.VAR_KEYWORD for each in names.values())
        output = module(**{k: v for k, v in batch.items() if has_rest or k in names})
    loss = output["loss"] if entry.loss is None else entry.loss(output, batch)
    return sum(loss.values()) if isinstance(loss, dict) else loss


@pytest.mark.parametrize("name", MODELS)
def test_outside_models_are_captured_exactly(name: str) -> None:
    """Loss, every gradient, buffers and dropout, at a batch size that was not captured."""
    entry = MODELS[name]
    pytest.importorskip(entry.package, exc_type=ImportError)
    torch.manual_seed(0)
    module, inputs = entry.make()
    captured = trace_module(module, inputs, loss=entry.loss)
    graph = captured.graph
    assert graph.capture.startswith(f"{entry.method}, torch")
    assert graph.batch == entry.batch
    batch = inputs(5 if graph.batch == "dynamic" else graph.batch_size)
    eager = run_step(module, lambda: eager_loss(entry, module, batch))
    assert eager.gradients, "the model trains something"

    def run_captured() -> Any:
        found = captured.run(batch)
        return found["loss"] if isinstance(found, dict) else found

    assert_same_step(run_step(module, run_captured), eager)
    staged = run_cut(captured, module, chain_cut(graph, 3), batch)
    assert_same_step(staged, eager, tolerance=1e-6)
    if graph.batch == "dynamic":
        assert_mixing_is_told(entry, module, captured, inputs(4))


def assert_mixing_is_told(entry: Entry, module: nn.Module, captured: Captured, batch: Any) -> None:
    """Where the loss of a batch is not the mean of its halves' losses, an op is marked."""
    module.eval()
    for part in module.modules():
        part.train(isinstance(part, nn.modules.batchnorm._BatchNorm))
    with torch.no_grad():
        whole = float(eager_loss(entry, module, batch))
        if float(eager_loss(entry, module, batch)) != whole:
            return  # It draws numbers outside of training too: no two losses can be compared.
        halves = [float(eager_loss(entry, module, half)) for half in halve(captured, batch)]
    differs = abs(whole - sum(halves) / 2) > 1e-5 * max(1.0, abs(whole))
    marked = [(each.op, each.kind) for each in captured.graph.mixing]
    # Mixtral sorts the words of a batch by expert and puts them back, which no pass can prove.
    is_cautious = captured.graph.name.startswith("Mixtral")
    assert bool(marked) == differs or (marked and is_cautious), marked


def halve(captured: Captured, batch: Any) -> list[Any]:
    """The first and the second half of the samples, in the form of the batch."""
    arguments = Arguments(*split_arguments(batch))
    found = []
    for place in range(2):
        tensors = []
        for given, tensor in zip(captured.graph.inputs, arguments.tensors, strict=True):
            dims = [dim for dim, size in enumerate(given.spec.shape) if isinstance(size, str)]
            tensors.append(tensor.chunk(2, dims[0])[place] if dims else tensor)
        half = arguments.with_tensors(tensors)
        found.append(half.kwargs or half.args)
    return found
