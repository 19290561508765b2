"""FLOPs and bytes of one call by its kind: one formula for the forward, one for each gradient half.

Matrix products and convolutions cost the forward's FLOPs again for every operand that needs a
gradient. Fused attention recomputes the scores: five products backward for two forward
(FlashAttention, arXiv 2205.14135). Everything else is bound by memory and counted roughly.
"""

from __future__ import annotations

import math
import re
from typing import Literal

from graphplan.cost.kinds import (
    FLOPS_PER_ELEMENT,
    FLOPS_PER_ELEMENT_BY_KIND,
    FREE_BACKWARD,
    RESIZING_VIEWS,
    Kind,
)
from graphplan.cost.laws.kernel import count_seen
from graphplan.nouns.base import Noun

Half = Literal["input", "weight"]
_EQUATION = re.compile(r"""['"]([a-zA-Z.,> -]+)['"]""")
_CAUSAL = re.compile(r"is_causal=True|, None, [\d.]+, True|dropout_p=[\d.]+, True")
_WINDOW = re.compile(r"[\[(](\d+(?:\s*,\s*\d+)*)[\])]")


class Operand(Noun, frozen=True, kw_only=True):
    """A tensor that a call reads or returns."""

    sizes: tuple[int, ...]
    item_bytes: int
    grad: Half | None = None
    """The half of the backward that makes its gradient, None when it needs none."""
    weight: bool = False
    """Whether it is a weight, or computed from weights alone."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Number of bytes."""
        return self.elements * self.item_bytes


class Call(Noun, frozen=True, kw_only=True):
    """An op with the sizes of its tensors; operands are in the order of the call."""

    name: str
    text: str
    kind: Kind
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]

    @property
    def num_results(self) -> int:
        """Elements of all results."""
        return sum(each.elements for each in self.results)

    @property
    def is_causal(self) -> bool:
        """Whether an attention masks what comes later, without a mask of its own."""
        return _CAUSAL.search(self.text) is not None

    @property
    def result_bytes(self) -> int:
        """Bytes of all results."""
        return sum(each.bytes for each in self.results)


def count_forward_flops(call: Call) -> int:
    """FLOPs of the forward."""
    if not call.operands or call.kind in ("view", "copy", "gather"):
        return 0
    if call.kind == "matmul":
        return _count_matmul(call)
    if call.kind == "conv" and len(call.operands) >= 2:
        return _count_conv(call)
    if call.kind == "attention" and len(call.operands) >= 3:
        return _count_attention(call)
    if call.kind == "rnn":
        return _count_rnn(call)
    if call.kind == "pool" and (window := _WINDOW.search(call.text)):
        return call.num_results * math.prod(int(size) for size in window[1].split(","))
    largest = max(
        (o.elements for o in call.operands if not (call.kind == "embedding" and o.weight)),
        default=0,
    )
    return max(call.num_results, largest) * _flops_per_element(call)


def count_forward_bytes(call: Call) -> int:
    """Bytes that the forward reads and writes."""
    if call.kind == "view":
        return 0
    read = sum(each.bytes for each in call.operands)
    if call.kind in ("gather", "embedding") and call.operands:
        table = max(call.operands, key=lambda each: each.bytes)
        indices = [each for each in call.operands if each is not table]
        rows = max([call.result_bytes, *(_row_bytes(table) * each.elements for each in indices)])
        read = read - table.bytes + min(table.bytes, rows)
    return read + call.result_bytes


def count_gradient(call: Call, half: Half, forward_flops: int) -> tuple[int, int]:
    """(FLOPs, bytes) of one half of the backward."""
    wanted = [each for each in call.operands if each.grad == half]
    if not wanted:
        return 0, 0
    if call.kind in ("matmul", "conv"):
        return _count_product_gradient(call, wanted, forward_flops)
    if call.kind == "rnn":
        return forward_flops, count_forward_bytes(call) + sum(each.bytes for each in wanted)
    if call.kind == "attention":
        shared = half == "weight" and any(each.grad == "input" for each in call.operands)
        moved = 2 * count_forward_bytes(call)
        return (0, 0) if shared else (forward_flops * 5 // 2, moved)
    return _count_memory_gradient(call, half, wanted)


def _count_memory_gradient(call: Call, half: Half, wanted: list[Operand]) -> tuple[int, int]:
    """Gradients of calls that memory bounds."""
    written = sum(each.bytes for each in wanted)
    incoming = call.result_bytes
    if call.kind == "view":
        return 0, (incoming + written if call.name in RESIZING_VIEWS else 0)
    if call.name in FREE_BACKWARD:
        summed = [
            each for each in wanted if call.kind != "copy" and each.elements < call.num_results
        ]
        return len(summed) * call.num_results, sum(incoming + each.bytes for each in summed)
    if call.kind in ("gather", "embedding"):
        return call.num_results, 2 * incoming + written
    if call.kind in ("copy", "scatter", "reduce"):
        return 0, incoming + written
    if half == "weight" and any(each.grad == "input" for each in call.operands):
        return 2 * call.num_results, written + (incoming if call.kind != "norm" else 0)
    read = sum(each.bytes for each in call.operands)
    flops = _flops_per_element(call) * max(each.elements for each in (*wanted, *call.results))
    return flops, incoming + read + written


def _count_product_gradient(
    call: Call, wanted: list[Operand], forward_flops: int
) -> tuple[int, int]:
    """Every factor's gradient multiplies the others with the incoming gradient.

    A bias sums it: bytes, but no products, and FLOP counters count products.
    """
    factors = factors_of(call)
    flops = moved = 0
    for each in wanted:
        others = [other for other in factors if other is not each]
        is_factor = len(others) < len(factors)
        flops += forward_flops if is_factor else 0
        moved += call.result_bytes + each.bytes
        moved += sum(other.bytes for other in others) if is_factor else 0
    return flops, moved


def factors_of(call: Call) -> tuple[Operand, ...]:
    """The operands that a product multiplies."""
    if call.name.startswith(("addm", "baddbmm", "addbmm", "addr", "_addmm")):
        return call.operands[1:3]
    if call.name in ("einsum", "bilinear", "chain_matmul", "multi_dot", "_trilinear"):
        return call.operands[:3] if call.name == "bilinear" else call.operands
    return call.operands[:2]


def _count_matmul(call: Call) -> int:
    factors = factors_of(call)
    if call.name == "einsum":
        return _count_einsum(call)
    if call.name == "tensordot" and len(factors) == 2:
        return 2 * math.isqrt(factors[0].elements * factors[1].elements * call.num_results)
    if call.name == "bilinear":
        return 2 * call.num_results * factors[0].sizes[-1] * factors[1].sizes[-1]
    if "grouped_mm" in call.name and len(factors) > 1:
        rows = factors[0].elements // max(1, factors[0].sizes[-1])
        return 2 * rows * (factors[1].elements // max(1, factors[1].sizes[0]))
    if call.name in ("outer", "ger", "addr", "kron") or not factors[0].sizes:
        return call.num_results
    return 2 * call.num_results * factors[0].sizes[-1]


def _count_einsum(call: Call) -> int:
    """Operands are contracted from left to right, as torch does without opt_einsum."""
    found = _EQUATION.search(call.text)
    if found is None:
        return 2 * call.num_results
    left, _, right = found[1].replace(" ", "").partition("->")
    terms = [
        _label_dims(term, operand.sizes)
        for term, operand in zip(left.split(","), call.operands, strict=False)
    ]
    kept = set(_label_dims(right, call.results[0].sizes)) if call.results else set(right)
    flops, current = 0, terms[0]
    for i, term in enumerate(terms[1:], start=1):
        union = current | term
        flops += 2 * math.prod(union.values())
        later = kept.union(*terms[i + 1 :])
        current = {label: size for label, size in union.items() if label in later}
    return flops or max(call.num_results, call.operands[0].elements)


def _label_dims(term: str, sizes: tuple[int, ...]) -> dict[str, int]:
    """Size by label; the dimensions of an ellipsis are numbered from the right."""
    head, dots, tail = term.partition("...")
    hidden = len(sizes) - len(head) - len(tail) if dots else 0
    labels = [*head, *(f"...{hidden - i}" for i in range(hidden)), *tail]
    return dict(zip(labels, sizes, strict=False))


def _count_conv(call: Call) -> int:
    """Every output element (input element when transposed) meets one filter: groups included."""
    image, filters = call.operands[:2]
    if not filters.sizes or not filters.sizes[0]:
        return 0
    transposed = "transpose" in call.name or (call.name == "convolution" and "True" in call.text)
    positions = image.elements if transposed else call.num_results
    return 2 * positions * (filters.elements // filters.sizes[0])


def _count_attention(call: Call) -> int:
    """Scores that no causal mask removes, and their sum; queries may have more heads than keys."""
    query, key, value = call.operands[:3]
    heads = query.elements // max(1, query.sizes[-1] * query.sizes[-2])
    seen = count_seen(query.sizes[-2], key.sizes[-2], causal=call.is_causal)
    return 2 * heads * seen * (query.sizes[-1] + value.sizes[-1])


def _count_rnn(call: Call) -> int:
    steps = call.operands[0].elements // max(1, call.operands[0].sizes[-1])
    matrices = (each for each in call.operands if each.weight and len(each.sizes) == 2)
    return 2 * steps * sum(each.elements for each in matrices)


def _row_bytes(table: Operand) -> int:
    return table.bytes // max(1, table.sizes[0]) if table.sizes else table.bytes


def _flops_per_element(call: Call) -> int:
    return FLOPS_PER_ELEMENT.get(call.name, FLOPS_PER_ELEMENT_BY_KIND.get(call.kind, 1))
