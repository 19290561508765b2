"""Run the stages of models on a pretend accelerator, and print a line for each model.

    python tools/check_devices.py [model.py | name ...]   (default: all outside models of the tests)
    python tools/check_devices.py --examples

Every model is captured and cut into three stages; the runtime's own stage runners do a forward and
a backward of one micro-batch, on the CPU and on a device that refuses tensors of another one as
CUDA does (tests/torch/strict_device.py). A line says how many ops ran there and the largest
difference of loss and gradients, relative where these exceed one. Exit code 1 if any op met tensors
of two devices. Examples are checked as they are, in their full size: name them one by one where
memory is short.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphplan.errors import GraphplanError
from graphplan.frontend import (
    Captured,
    StageModule,
    cut_graph,
    load_model_file,
    trace_model_file,
    trace_module,
)
from graphplan.frontend.execute import sort_stages
from graphplan.nouns.policy import WeightPolicy
from graphplan_runtime.stages.stage import StageRunner, StageSetup
from graphplan_runtime.updates.weights import WeightVersions
from tests.models.zoo import EXAMPLES, ZOO
from tests.models.zoo_others import OTHERS
from tests.models.zoo_transformers import TRANSFORMERS
from tests.torch.cuts import chain_cut
from tests.torch.strict_device import DEVICE, DeviceMismatch, StrictDevice, to_strict

MODELS = ZOO | TRANSFORMERS | OTHERS
Tensors = dict[str, torch.Tensor]
SEED = 3
HOST = torch.device("cpu")


def run_step(
    captured: Captured, held: Mapping[str, torch.Tensor], batch: Any, device: torch.device
) -> Tensors:
    """The loss and all gradients of one micro-batch that goes through three stages."""
    stages = cut_graph(captured, chain_cut(captured.graph, 3), device=device)
    move = to_strict if device == DEVICE else _clone
    weights = {name: move(tensor) for name, tensor in held.items()}
    runners = {stage.index: _make_runner(stage, captured, weights, device) for stage in stages}
    values = {name: move(tensor) for name, tensor in captured.flatten_batch(batch).items()}
    order = sort_stages(stages)
    for stage in order:
        inputs = [values[given.name] for given in stage.inputs]
        outputs = runners[stage.index].forward(0, inputs, seed=SEED)
        values |= dict(zip(stage.outputs, outputs, strict=True))
    found = _run_backward(order, runners, values)
    found |= {name: w.grad for name, w in weights.items() if w.grad is not None}
    return {name: tensor.to("cpu") for name, tensor in found.items()}


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    fresh = tensor.detach().clone()
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(fresh, requires_grad=tensor.requires_grad) if is_parameter else fresh


def _make_runner(
    stage: StageModule,
    captured: Captured,
    weights: Mapping[str, torch.Tensor],
    device: torch.device,
) -> StageRunner:
    own = [weights[weight.name] for weight in stage.weights]
    has_backward = any(
        captured.graph.op_by_name[name].needs_backward
        for name in (node.name for node in stage.graph.nodes)
        if name in captured.graph.op_by_name
    )
    versions = WeightVersions(own, WeightPolicy(), stage.index)
    setup = StageSetup(device=device, has_backward=has_backward)
    return StageRunner(stage, captured.graph, versions, setup)


def _run_backward(
    order: Sequence[StageModule], runners: Mapping[int, StageRunner], values: Tensors
) -> Tensors:
    """Backwards from the loss; the loss by its name."""
    gradients: Tensors = {}
    losses = {stage.loss: values[stage.loss] for stage in order if stage.loss is not None}
    gradients |= {name: torch.ones_like(loss) for name, loss in losses.items()}
    for stage in reversed(order):
        runner = runners[stage.index]
        if not runner.setup.has_backward:
            continue
        found = runner.backward(0, [gradients.get(name) for name in stage.outputs])
        for given, gradient in zip(stage.inputs, found, strict=True):
            if gradient is not None:
                known = gradients.get(given.name)
                gradients[given.name] = gradient if known is None else known + gradient
    return losses


def check(captured: Captured, held: Mapping[str, torch.Tensor], batch: Any) -> tuple[float, int]:
    """(largest difference from the CPU, ops on the device); raises DeviceMismatch."""
    wanted = run_step(captured, held, batch, HOST)
    device = StrictDevice()
    with device:
        found = run_step(captured, held, batch, DEVICE)
    assert found.keys() == wanted.keys(), "another set of gradients"
    return max(_differ(found[name], wanted[name]) for name in wanted), device.num_ops


def _differ(found: torch.Tensor, wanted: torch.Tensor) -> float:
    if not wanted.numel():
        return 0.0
    scale = max(1.0, float(wanted.abs().max()))
    return float((found - wanted).abs().max()) / scale


def check_outside(name: str) -> tuple[float, int]:
    """A model of the tests' zoo."""
    entry = MODELS[name]
    torch.manual_seed(0)
    module, inputs = entry.make()
    captured = trace_module(module, inputs, loss=entry.loss)
    size = 5 if captured.graph.batch == "dynamic" else captured.graph.batch_size
    return check(captured, captured.weights(), inputs(size))


def check_file(path: str) -> tuple[float, int]:
    """A model file, with the settings that it comes with."""
    file = load_model_file(path)
    captured = trace_model_file(file)
    torch.manual_seed(0)
    module = file.build()
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    held = {name: named.get(name, tensor) for name, tensor in captured.weights().items()}
    return check(captured, held, file.inputs(2))


def main() -> None:
    """Check what is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--examples", action="store_true")
    options = parser.parse_args()
    names = options.models or sorted(MODELS)
    if options.examples:
        names = sorted(str(path) for path in EXAMPLES.glob("*.py"))
    mismatches = 0
    for name in names:
        label = Path(name).stem if name.endswith(".py") else name
        try:
            difference, num_ops = check_file(name) if name.endswith(".py") else check_outside(name)
            print(f"{label:24} {num_ops:6} ops on the device, differs by {difference:.1e}")
        except DeviceMismatch as error:
            mismatches += 1
            print(f"{label:24} MISMATCH {error}")
        except (GraphplanError, RuntimeError, ImportError) as error:
            print(f"{label:24} not run: {str(error).splitlines()[0][:120]}")
        sys.stdout.flush()
    sys.exit(mismatches > 0)


if __name__ == "__main__":
    main()
