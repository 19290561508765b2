"""Kernels of a call: what eager torch runs on a GPU for its forward and for each gradient half.

flops.py counts the least work; this module lists what is really run. Backwards of elementwise ops
are several kernels in eager torch: that of a product of two tensors is two products (six tensors
moved), a dropout's multiplies with a mask that is cast and scaled first (6.25), a softmax's has a
product of its own before the reduction (6), a norm's reads all for every gradient (7). The counts
are those of measured nodes of training steps (tools/validate_gpu.py). Weight gradients are added to
those of earlier micro-batches.

An op without a formula of its own moves its operands and results once, as any elementwise op does,
and takes at least a launch; `cost/unpriced.py` names it.
"""

from __future__ import annotations

import math
import re

from graphplan.cost.formulas import (
    Call,
    Half,
    Operand,
    count_forward_bytes,
    count_forward_flops,
    count_gradient,
    factors_of,
)
from graphplan.cost.laws.kernel import (
    Attention,
    Convolution,
    Kernel,
    Product,
    RowKind,
    Rows,
    Stream,
)

Kernels = tuple[Kernel, ...]
_STRIDE = re.compile(r"\[(\d+(?:, \d+)*)\]")

BACKWARD_PASSES: dict[str, float] = {
    "dropout": 6.25, "native_dropout": 6.25, "mul": 6, "div": 7, "pow": 7, "silu": 3, "gelu": 3,
    "tanh": 3, "relu": 3, "sigmoid": 3, "leaky_relu": 3, "exp": 3, "sqrt": 4, "rsqrt": 7,
    "softplus": 3, "where": 5, "masked_fill": 3, "abs": 4, "log": 3, "neg": 2, "clamp": 4,
}  # fmt: skip
"""Tensors of the result's size that the eager backward moves."""
BACKWARD_LAUNCHES = {"dropout": 3, "native_dropout": 1, "mul": 2, "div": 4, "pow": 3, "rsqrt": 3}
ROW_KINDS: dict[str, RowKind] = {"norm": "norm", "softmax": "softmax", "loss": "softmax"}
ROW_BACKWARD = {"norm": 7.0, "softmax": 6.0}
"""Passes: a norm reads input and gradient for every gradient, with partial sums between."""
ACCUMULATE = 3
"""Adding a gradient to the one that is there reads two tensors and writes one."""


def list_forward(call: Call, dtype: str) -> Kernels:
    """What the forward runs."""
    if call.kind == "view":
        return ()
    flops, moved = count_forward_flops(call), count_forward_bytes(call)
    if call.kind in ("matmul", "rnn") and flops and call.operands:
        return (_to_product(call, dtype, flops),)
    if call.kind == "conv" and flops:
        return (_to_convolution(call, dtype, flops, moved),)
    if call.kind == "attention" and flops:
        return (_to_attention(call, dtype, backward=False),)
    if call.kind in ROW_KINDS and (shape := _row_shape(call)):
        loss = call.kind == "loss"
        return (_to_rows(call, shape, 4.0 if loss else 2.0, launches=2 if loss else 1),)
    return (Stream(moved),)


def list_gradient(call: Call, dtype: str, half: Half) -> Kernels:
    """What one half of the backward runs."""
    flops, moved = count_gradient(call, half, count_forward_flops(call))
    wanted = [each for each in call.operands if each.grad == half]
    if not wanted or not (flops or moved):
        return ()
    weights = [each for each in wanted if each.weight]
    added = tuple(Stream(ACCUMULATE * each.bytes) for each in weights)
    return (*_list_products(call, dtype, half, wanted, flops, moved), *added)


def _list_products(
    call: Call, dtype: str, half: Half, wanted: list[Operand], flops: int, moved: int
) -> Kernels:
    if call.kind in ("matmul", "rnn") and flops:
        return _list_matmul_gradient(call, dtype, wanted)
    if call.kind == "conv" and flops:
        forward = count_forward_flops(call)
        found: list[Kernel] = []
        for each in wanted:
            if each is call.operands[0] or each is call.operands[1]:
                whole = _to_convolution(call, dtype, forward, count_forward_bytes(call))
                found.append(_turn_convolution(whole, filters=each is call.operands[1]))
            else:
                found.append(Stream(call.result_bytes + each.bytes))
        return tuple(found)
    if call.kind == "attention":
        return (_to_attention(call, dtype, backward=True),) if flops else ()
    alone = half == "input" or not any(each.grad == "input" for each in call.operands)
    if call.kind in ROW_KINDS and alone and (shape := _row_shape(call)):
        passes = 3.0 if call.kind == "loss" else ROW_BACKWARD[ROW_KINDS[call.kind]]
        return (_to_rows(call, shape, passes, launches=2),)
    if alone and call.name in BACKWARD_PASSES and call.results:
        passes = BACKWARD_PASSES[call.name]
        if call.name in ("mul", "div"):
            passes *= min(2, len([e for e in call.operands if e.grad])) / 2
        launches = BACKWARD_LAUNCHES.get(call.name, 1)
        return (Stream(max(moved, int(passes * call.result_bytes)), launches),)
    return (Stream(moved),)


def _to_product(call: Call, dtype: str, flops: int) -> Product:
    """The product with the result's rows and columns; what is summed follows from the FLOPs."""
    factors = factors_of(call)
    sizes = call.results[0].sizes if call.results else ()
    columns = sizes[-1] if sizes else 1
    item = max(each.item_bytes for each in factors) if factors else 4
    if "grouped_mm" in call.name and len(factors) > 1 and len(factors[1].sizes) > 2:
        return _to_grouped(call, dtype, factors[1].sizes[0])
    batched = len(factors) > 1 and len(factors[1].sizes) > 2 and len(sizes) > 2
    batch = math.prod(sizes[:-2]) if batched else 1
    rows = max(1, call.num_results // max(1, batch * columns))
    if call.kind == "rnn":
        columns = max((e.sizes[0] for e in call.operands if e.weight and e.sizes), default=columns)
    inner = max(1, round(flops / max(1, 2 * batch * rows * columns)))
    return Product(dtype, item, max(1, batch), rows, max(1, columns), inner)


def _to_grouped(call: Call, dtype: str, experts: int) -> Product:
    """Rows that are spread over experts, evenly as far as anybody knows."""
    first, second = factors_of(call)[:2]
    rows = max(1, first.elements // max(1, first.sizes[-1]) // max(1, experts))
    columns = max(1, second.elements // max(1, experts * first.sizes[-1]))
    return Product(dtype, first.item_bytes, experts, rows, columns, max(1, first.sizes[-1]))


def _list_matmul_gradient(call: Call, dtype: str, wanted: list[Operand]) -> Kernels:
    forward = _to_product(call, dtype, count_forward_flops(call))
    factors = factors_of(call)
    found: list[Kernel] = []
    for each in wanted:
        place = next((i for i, factor in enumerate(factors) if factor is each), None)
        if place is None and call.kind == "matmul":
            found.append(Stream(call.result_bytes + each.bytes))
        elif call.kind == "rnn" and each.weight and len(each.sizes) < 2:
            continue
        elif place == 0:
            found.append(forward._replace(columns=forward.inner, inner=forward.columns))
        else:
            found.append(forward._replace(rows=forward.inner, inner=forward.rows))
    if call.kind == "rnn":
        return tuple(found[:1])
    return tuple(found)


def _to_convolution(call: Call, dtype: str, flops: int, moved: int) -> Convolution:
    image, filters = call.operands[:2]
    taps = math.prod(filters.sizes[2:])
    channels = call.results[0].sizes[1] if call.results and len(call.results[0].sizes) > 1 else 1
    positions = max(1, call.num_results // max(1, channels))
    transposed = "transpose" in call.name
    wide = filters.sizes[1] if len(filters.sizes) > 1 else 1
    groups = 1
    if not transposed and len(image.sizes) > 1 and wide:
        groups = max(1, image.sizes[1] // wide)
    columns = max(1, channels // groups)
    inner = max(1, round(flops / max(1, 2 * groups * positions * columns)))
    stride = _STRIDE.search(call.text)
    unit = stride is None or set(stride[1].split(", ")) == {"1"}
    return Convolution(dtype, image.item_bytes, groups, positions, columns, inner, taps, moved,
                       unit and not transposed, _pad_positions(call, positions))  # fmt: skip


def _pad_positions(call: Call, positions: int) -> int:
    """Output positions of all samples, height and width rounded up to multiples of 4."""
    sides = call.results[0].sizes[2:] if call.results else ()
    if len(sides) != 2 or not all(sides):
        return positions
    return positions // math.prod(sides) * math.prod(-(-side // 4) * 4 for side in sides)


def _turn_convolution(forward: Convolution, *, filters: bool) -> Convolution:
    """The gradient of the image, or of the filters, which sums over all positions."""
    if filters:
        return forward._replace(positions=forward.inner, inner=forward.positions,
                                padded=0, unit_stride=False)  # fmt: skip
    if forward.inner % forward.taps:
        return forward._replace(channels=forward.inner, inner=forward.channels)
    return forward._replace(channels=forward.inner // forward.taps,
                            inner=forward.channels * forward.taps)  # fmt: skip


def _to_attention(call: Call, dtype: str, *, backward: bool) -> Attention:
    query, key = call.operands[0].sizes, call.operands[1].sizes
    heads = query[-3] if len(query) > 2 else 1
    return Attention(
        dtype=dtype,
        item_bytes=call.operands[0].item_bytes,
        batch=math.prod(query[:-3]),
        heads=heads,
        key_heads=key[-3] if len(key) > 2 else 1,
        queries=query[-2],
        keys=key[-2],
        head=query[-1],
        causal=call.is_causal,
        backward=backward,
    )


def _row_shape(call: Call) -> tuple[int, int, int] | None:
    """(item bytes, rows, columns) of the largest operand."""
    if not call.operands:
        return None
    largest = max(call.operands, key=lambda each: each.elements)
    if not largest.sizes or not largest.elements:
        return None
    columns = largest.sizes[-1]
    if call.kind == "norm" and "batch_norm" in call.name:
        columns = math.prod(largest.sizes[2:]) or 1
    return largest.item_bytes, max(1, largest.elements // max(1, columns)), max(1, columns)


def _to_rows(call: Call, shape: tuple[int, int, int], passes: float, *, launches: int) -> Rows:
    item, rows, columns = shape
    kind = ROW_KINDS[call.kind]
    return Rows(kind, item, rows, columns, passes, launches)
