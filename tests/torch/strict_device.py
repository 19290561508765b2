"""A pretend accelerator: real numbers on the CPU, in tensors that claim to be elsewhere.

`strict:0` is a device in all that decides where work is done: tensors say so, factories make them
there, autograd and optimizers run on them, and an op that mixes them with tensors of the CPU is
refused as CUDA refuses it (0-dimensional tensors of the CPU may be read; an index may be, too).
What it does not show is order: every op is done at once. A process that imports this has an
accelerator from then on: use it in one of its own.

    with StrictDevice():                        # factories with device="strict:0" make such tensors
        x = torch.ones(2, device="strict:0")
        x + torch.ones(2)                       # DeviceMismatch
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

aten = torch.ops.aten
NAME = "strict"


class _Backend(_DummyBackendModule):
    """What torch asks of a kind of device; it draws its numbers from the CPU's generator."""

    def manual_seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
DEVICE = torch.device(NAME, 0)
HOST = torch.device("cpu")

COPIES = {
    aten._to_copy.default,
    aten.copy_.default,
    aten.to.device,
    aten.to.dtype_layout,
    aten._local_scalar_dense.default,
}
"""Ops that carry numbers from one device to another."""
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
"""Ops whose indices CUDA takes from the host, too."""
HOST_ARGUMENTS = {
    aten._pack_padded_sequence.default: (1,),
    aten._pad_packed_sequence.default: (1,),
    aten._pack_padded_sequence_backward.default: (2,),
    aten.lstm.data: (1,),
    aten.gru.data: (1,),
    aten.tensor_split.tensor_indices_or_sections: (1,),
}
"""Places of tensors that the op wants on the host."""
HOST_RESULTS = {aten._pack_padded_sequence.default: (1,)}


def _fused_lstm(
    given: torch.Tensor, hidden: torch.Tensor, cx: torch.Tensor, *biases: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    """The cell that accelerators fuse and the CPU does not have; it keeps its gates."""
    gates = given + hidden + sum(each for each in biases if each is not None)
    i, f, g, o = gates.chunk(4, 1)
    kept = torch.cat([i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()], 1)
    i, f, g, o = kept.chunk(4, 1)
    cy = f * cx + i * g
    return o * cy.tanh(), cy, kept


def _fused_lstm_backward(
    grad_hy: torch.Tensor | None,
    grad_cy: torch.Tensor | None,
    cx: torch.Tensor,
    cy: torch.Tensor,
    kept: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of the gates, of the old cell and of the bias."""
    i, f, g, o = kept.chunk(4, 1)
    to_h = torch.zeros_like(cy) if grad_hy is None else grad_hy
    to_c = to_h * o * (1 - cy.tanh() ** 2) + (0 if grad_cy is None else grad_cy)
    gates = torch.cat(
        [
            to_c * g * i * (1 - i),
            to_c * cx * f * (1 - f),
            to_c * i * (1 - g**2),
            to_h * cy.tanh() * o * (1 - o),
        ],
        1,
    )
    return gates, to_c * f, gates.sum(0) if has_bias else None


OWN_KERNELS = {
    aten._thnn_fused_lstm_cell.default: _fused_lstm,
    aten._thnn_fused_lstm_cell_backward_impl.default: _fused_lstm_backward,
}


class DeviceMismatch(RuntimeError):
    """An op was given tensors of two devices."""


class StrictTensor(torch.Tensor):
    """A tensor of the pretend device around one of the CPU."""

    raw: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> StrictTensor:
        made: StrictTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            layout=raw.layout,
            device=DEVICE,
            requires_grad=raw.requires_grad,
        )
        made.raw = raw.detach()
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"StrictTensor({self.raw})"

    def tolist(self) -> Any:
        """Read by the host, which waits for it; torch refuses this for subclasses."""
        return self.raw.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run_strictly(func, args, kwargs or {})


class StrictDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, factories and copies know the pretend device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_ops = 0
        """Ops whose result is on the device, so far."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = run_strictly(func, args, kwargs or {})
        self.num_ops += any(isinstance(each, StrictTensor) for each in pytree.tree_leaves(result))
        return result


def run_strictly(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One op: refused where devices mix, else done on the CPU and wrapped again."""
    leaves = pytree.tree_leaves((args, kwargs))
    wrapped = {id(each.raw): each for each in leaves if isinstance(each, StrictTensor)}
    target = next((each for each in leaves if isinstance(each, torch.device)), None)
    if wrapped and func not in COPIES:
        _refuse_mixture(func, args, kwargs)
    raw_args, raw_kwargs = pytree.tree_map(_unwrap, (args, kwargs))
    result = OWN_KERNELS.get(func, func)(*raw_args, **raw_kwargs)
    is_there = bool(wrapped) if target is None else target.type == NAME
    if func is aten.copy_.default:
        return args[0]
    if not is_there:
        return result
    host = HOST_RESULTS.get(func, ())
    if isinstance(result, (tuple, list)) and host:
        return tuple(each if i in host else _wrap(each, wrapped) for i, each in enumerate(result))
    return pytree.tree_map_only(torch.Tensor, lambda each: _wrap(each, wrapped), result)


def _wrap(raw: torch.Tensor, wrapped: dict[int, StrictTensor]) -> torch.Tensor:
    """What an op returns; an op that writes into its argument returns that argument."""
    if isinstance(raw, StrictTensor):
        return raw
    return wrapped.get(id(raw)) if id(raw) in wrapped else StrictTensor(raw)  # type: ignore[return-value]


def _unwrap(value: Any) -> Any:
    if isinstance(value, StrictTensor):
        return value.raw
    if isinstance(value, torch.device) and value.type == NAME:
        return HOST
    return value


def _refuse_mixture(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    hosted = HOST_ARGUMENTS.get(func, ())
    for place, each in (*enumerate(args), *kwargs.items()):
        for leaf in pytree.tree_leaves(each):
            if not isinstance(leaf, torch.Tensor):
                continue
            is_there = isinstance(leaf, StrictTensor)
            if place in hosted and is_there:
                raise DeviceMismatch(f"{func} wants argument {place} on the CPU, not on {DEVICE}")
            free = leaf.dim() == 0 or (func in INDEXED and place == 1) or place in hosted
            if not is_there and not free:
                raise DeviceMismatch(f"{func} is given tensors of {DEVICE} and of the CPU")


def to_strict(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the pretend device; a parameter stays one."""
    moved = StrictTensor(tensor.detach().clone())
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)
    return moved
