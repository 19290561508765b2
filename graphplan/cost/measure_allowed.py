"""Allowed ops: what a graph from a file may call when it is measured.

A file is not trusted, and torch registers thousands of ops: some open files (`from_file`, `save`),
some take storages, streams or pickles, some believe what they are told about memory. Allowed is

- an op of the dispatcher's `aten` namespace, public or among `_PRIVATE`, that no rule of `_DENIED`
  names, whose arguments and results have the types of `_TYPES`, whose texts are options such as
  `rounding_mode`, and that writes nothing but the first argument of an in-place op (of which it
  then gets a copy);
- one of the named ops of libraries that captured models call, if the library is there;
- arithmetic of Python on tensors and numbers, and `getitem`.

Everything else is estimated instead of measured.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

MAX_NUMBER = 1 << 63
MAX_RESULTS = 1 << 14
"""Most tensors that an op may return."""

_DENIED: dict[str, str] = {
    r"from_file|save|load|print|warn": "reads or writes files, or prints",
    r".*backward.*": "trusts positions that a forward would have computed",
    r"set|set_|set_data|data|resize.*|as_strided_?|as_strided_scatter": "changes or widens storage",
    r"record_stream|.*pin_memory|is_pinned": "acts on the device, not on values",
    r"(cudnn|miopen|mkldnn|mps|fbgemm|quantized?|q|to_mkldnn|dequantize)(_.*)?": "is of a backend",
    r"(to_)?sparse.*|.*_sparse|(crow|ccol|col|row)?_?indices.*|values.*|coalesce.*|h?spmm|ss?paddmm"
    r"|smm|.*nested.*|to_padded_tensor": "trusts what a sparse tensor says of itself",
    r"segment_reduce": "can be told not to look at its lengths",
    r"special_.*polynomial.*": "counts up to one of its arguments",
    r"bincount|combinations|repeat_interleave|.*_names?|rename.*|align_.*": "has a size that no"
    " shape tells",
}
_PRIVATE = frozenset((
    "__and__", "__or__", "__xor__", "__lshift__", "__rshift__", "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d", "_aminmax", "_assert_async", "_assert_tensor_metadata",
    "_cdist_forward", "_conj", "_convolution", "_convolution_mode", "_embedding_bag",
    "_fused_rms_norm", "_grouped_mm", "_is_all_true", "_is_any_true", "_linalg_det",
    "_linalg_eigh", "_linalg_slogdet", "_linalg_solve_ex", "_linalg_svd",
    "_local_scalar_dense", "_log_softmax", "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training",
    "_neg_view", "_pad_circular", "_pad_enum", "_pdist_forward", "_prelu_kernel",
    "_safe_softmax", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_softmax", "_stack", "_to_copy", "_trilinear", "_unique2", "_unsafe_index",
    "_unsafe_index_put", "_unsafe_view", "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    "_weight_norm", "_weight_norm_interface",
))  # fmt: skip
_LIBRARIES = frozenset((
    "torchvision.nms.default", "torchvision.roi_align.default",
    "torchvision.roi_pool.default", "torchvision.deform_conv2d.default",
    "transformers.grouped_mm_fallback.default",
))  # fmt: skip
_TYPES = frozenset((
    "Tensor", "int", "float", "bool", "number", "Device", "str", "Generator",
))  # fmt: skip
"""A generator cannot be given: no text of a call stands for one."""
_OPTIONS = frozenset((
    "UPLO", "approximate", "assert_msg", "driver", "equation", "indexing", "interpolation",
    "mode", "norm", "ord", "p", "pad_mode", "padding", "padding_side", "reduce",
    "rounding_mode", "side",
))  # fmt: skip
"""Arguments that are texts and choose what an op computes."""
_ARITHMETIC = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "neg", "abs", "lt", "le", "gt", "ge",
    "eq", "ne", "and_", "or_", "not_",
)  # fmt: skip
_WRAPPED = re.compile(r"(?:Optional|List)\[(.*)\]")


class NotKnown(Exception):
    """A call that cannot be rebuilt."""


@functools.cache
def find_target(name: str) -> Callable[..., Any]:
    """The function behind a name such as `aten.linear.default` or `getitem`, if it is allowed."""
    if name == "getitem":
        return get_item
    if name in _ARITHMETIC:
        return Arithmetic(name)
    words = name.split(".")
    if len(words) != 3 or (words[0] != "aten" and name not in _LIBRARIES):
        raise NotKnown(f"the op {name[:80]!r} is not among the allowed ones")
    library, kind, overload = words
    if library == "aten":
        found = check_signature(kind, overload)
        _judge_op(kind, found)
    elif f"{library}::{kind}" not in _list_registered():
        raise NotKnown(f"the op {name!r} is not registered here")
    else:
        found = getattr(getattr(getattr(torch.ops, library), kind), overload)
    return _OutOfPlace(found) if _writes_first(found) else found


@functools.cache
def _list_registered() -> frozenset[str]:
    """Ops of the dispatcher; the builtins of TorchScript, such as `aten::save`, are not there."""
    return frozenset(torch._C._dispatch_get_all_op_names())


def check_signature(kind: str, overload: str) -> OpOverload:
    """The aten op of these names, unless its arguments reach beyond tensors and numbers."""
    qualified = f"aten::{kind}" + (f".{overload}" if overload != "default" else "")
    if qualified not in _list_registered():
        raise NotKnown(f"the op 'aten.{kind[:80]}.{overload[:80]}' is not registered here")
    found: OpOverload = getattr(getattr(torch.ops.aten, kind), overload)
    for argument in found._schema.arguments:
        plain = _strip(str(argument.type))
        if plain not in _TYPES or (plain == "str" and argument.name not in _OPTIONS):
            raise NotKnown(f"aten.{kind} takes {argument.name!r}, a {argument.type}")
    return found


def _judge_op(kind: str, op: OpOverload) -> None:
    if kind.startswith("_") and kind.rstrip("_") not in _PRIVATE and kind not in _PRIVATE:
        raise NotKnown(f"aten.{kind} is private to torch")
    for pattern, why in _DENIED.items():
        if re.fullmatch(pattern, kind):
            raise NotKnown(f"aten.{kind} {why}")
    for position, argument in enumerate(op._schema.arguments):
        is_own = position == 0 and kind.endswith("_")
        if argument.alias_info and argument.alias_info.is_write and not is_own:
            raise NotKnown(f"aten.{kind} writes into {argument.name!r}")


def _strip(kind: str) -> str:
    """`Optional[List[int]]` -> `int`."""
    while match := _WRAPPED.fullmatch(kind):
        kind = match[1]
    return kind


def _writes_first(target: OpOverload) -> bool:
    arguments = target._schema.arguments
    return bool(arguments and arguments[0].alias_info and arguments[0].alias_info.is_write)


class _OutOfPlace:
    """An in-place op on a copy of its first argument."""

    def __init__(self, target: OpOverload) -> None:
        self.target = target

    def __str__(self) -> str:
        return str(self.target)

    def __call__(self, written: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.target(written.clone(), *args, **kwargs)


def get_item(values: Any, index: int) -> Any:
    """A result of an op that has several."""
    if not isinstance(values, (tuple, list)) or type(index) is not int:
        raise NotKnown("getitem takes one of several results")
    return values[index]


class Arithmetic:
    """An operator of Python on tensors and numbers, which do not grow without end."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self._run: Callable[..., Any] = getattr(operator, name)

    def __str__(self) -> str:
        return self.__name__

    def __call__(self, *operands: Any) -> Any:
        kinds = (torch.Tensor, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
        if not all(isinstance(each, kinds) for each in operands):
            raise NotKnown(f"{self} takes tensors and numbers")
        found = self._run(*operands)
        if isinstance(found, int) and abs(found) >= MAX_NUMBER:
            raise NotKnown(f"{self} gives a number beyond 64 bits")
        return found


def check_count(target: Any, args: tuple[Any, ...]) -> None:
    """Refuse calls that would return more tensors than a model has ops."""
    kind = str(target).split(".")[1] if "." in str(target) else ""
    kind = kind.removeprefix("unsafe_")
    if kind not in ("unbind", "split", "chunk", "tensor_split", "hsplit", "vsplit", "dsplit"):
        return
    given = args[0] if args else None
    largest = max(given.shape, default=0) if isinstance(given, torch.Tensor) else 0
    number = next((each for each in args[1:2] if isinstance(each, int)), 1)
    if kind == "split":
        largest = largest // max(1, number)
    elif kind != "unbind":
        largest = number
    if largest > MAX_RESULTS:
        raise NotKnown(f"{kind} into more than {MAX_RESULTS} tensors")
