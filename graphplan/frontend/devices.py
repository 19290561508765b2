"""Devices: the ops of a stage on the device that the stage runs on.

A capture is made on the CPU, whatever the user's device (fakes.py), and says so: `arange(n,
device=cpu)`, `_to_copy(x, device=cpu)`. Run as it stands on an accelerator, the first op that mixes
such a tensor with one of a stage would fail. So where a stage is made for a device, every device
that its ops name becomes that one. A few ops want one of their tensors on the host, wherever the
others are (the lengths of packed sequences); those are brought there at their reader.

    n = arange(7, device=cpu)             n = arange(7, device=cuda:1)
    packed = _pack(x, lengths)     --->   here = lengths.to(cpu)
                                          packed = _pack(x, here)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from graphplan.cost.measure_body import move_devices

aten = torch.ops.aten

HOST_ARGUMENTS: dict[Any, int] = {
    aten._pack_padded_sequence.default: 1,
    aten._pad_packed_sequence.default: 1,
    aten.lstm.data: 1,
    aten.gru.data: 1,
    aten.rnn_tanh.data: 1,
    aten.rnn_relu.data: 1,
    aten.tensor_split.tensor_indices_or_sections: 1,
}
"""Ops that read a tensor on the host, and its place among their arguments."""


def place_ops(graph: fx.Graph, device: torch.device) -> None:
    """Let the ops of a graph work on a device; the CPU is where they are already."""
    if device.type == "cpu":
        return
    for node in [*graph.nodes]:
        if node.op != "call_function":
            continue
        node.args = move_devices(node.args, device)
        node.kwargs = move_devices(_name_device(node), device)
        place = HOST_ARGUMENTS.get(node.target)
        if place is not None:
            with graph.inserting_before(node):
                host = graph.call_function(_bring_to_host, (node.args[place],))
            node.update_arg(place, host)


def _name_device(node: fx.Node) -> dict[str, Any]:
    """The keywords of an op; a factory that was called without a device is told one."""
    kwargs = dict(node.kwargs)
    schema = getattr(node.target, "_schema", None)
    if schema is None or kwargs.get("device") is not None:
        return kwargs
    places = {argument.name: i for i, argument in enumerate(schema.arguments)}
    is_factory = not any("Tensor" in str(argument.type) for argument in schema.arguments)
    if is_factory and places.get("device", 0) >= len(node.args):
        kwargs["device"] = torch.device("cpu")
    return kwargs


def _bring_to_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu")
