"""StageModule: the module of one stage, with named inputs and outputs and only its own weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from graphplan.errors import CutError
from graphplan.nouns.opgraph import Weight
from graphplan.nouns.tensor import TensorSpec


@dataclass(frozen=True)
class StageInput:
    """A value that a stage reads; `source` is the stage that produces it, None for model inputs."""

    name: str
    source: int | None
    spec: TensorSpec
    needs_grad: bool
    """Whether a gradient flows back through it."""


class StageModule(fx.GraphModule):
    """Takes the tensors of `inputs` by position or name, returns those of `outputs` as a tuple.

    Its weights have the names of the user's module, so that `state_dict()` is a part of the
    user's.
    """

    index: int
    inputs: tuple[StageInput, ...]
    outputs: tuple[str, ...]
    weights: tuple[Weight, ...]
    loss: str | None
    """The output that is the loss of the model, None in all other stages."""

    def __init__(
        self,
        tensors: Mapping[str, Any],
        graph: fx.Graph,
        *,
        index: int,
        inputs: Sequence[StageInput],
        outputs: Sequence[str],
        weights: Sequence[Weight],
        loss: str | None,
    ) -> None:
        super().__init__(dict(tensors), graph, class_name=f"Stage{index}")
        self.index = index
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.weights = tuple(weights)
        self.loss = loss

    def __deepcopy__(self, memo: dict[int, Any]) -> StageModule:
        raise TypeError("cut the captured model again instead of copying a stage")

    def run_values(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The outputs by name, from values by name; others may be among them."""
        results = self(*(values[given.name] for given in self.inputs))
        return dict(zip(self.outputs, results, strict=True))

    def named_weights(self) -> dict[str, torch.Tensor]:
        """The tensors of `weights` by name."""
        named = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        return {weight.name: named[weight.name] for weight in self.weights}


def load_weights(stage: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Give a stage the tensors of a state dict, found under any of their names.

    A tensor of the right shape is used as it is, not copied: the stage then shares it with `state`.
    Constants that `state` does not have stay as they are.
    """
    assert isinstance(stage, StageModule)
    held = stage.named_weights()
    for weight in stage.weights:
        names = [name for name in (weight.name, *weight.aliases) if name in state]
        if not names:
            if held[weight.name].is_meta:
                raise CutError(
                    f"Stage {stage.index} needs the {weight.kind} {weight.name!r}, which the given"
                    " weights do not have.",
                    remedy="Give the state of the whole model, buffers included.",
                )
            continue
        _set_weight(stage, weight, state[names[0]])


def _set_weight(stage: StageModule, weight: Weight, tensor: torch.Tensor) -> None:
    if tuple(tensor.shape) != tuple(weight.spec.shape):
        raise CutError(
            f"{weight.name!r} has shape {list(tensor.shape)}, the captured model has"
            f" {list(weight.spec.shape)}.",
            remedy="Build the model with the same settings as for the capture.",
        )
    path, _, key = weight.name.rpartition(".")
    owner = stage.get_submodule(path)
    if weight.kind == "parameter":
        if not isinstance(tensor, nn.Parameter) or tensor.requires_grad != weight.trainable:
            tensor = nn.Parameter(tensor.detach(), requires_grad=weight.trainable)
        owner.register_parameter(key, tensor)
    else:
        owner.register_buffer(key, tensor.detach())


def shared_weights(stages: Sequence[StageModule]) -> dict[str, tuple[int, ...]]:
    """Weights that several stages hold, with the stages; their gradients must be added."""
    holders: dict[str, list[int]] = {}
    for stage in stages:
        for weight in stage.weights:
            holders.setdefault(weight.name, []).append(stage.index)
    return {name: tuple(held) for name, held in holders.items() if len(held) > 1}
