"""Price: seconds of any kernels on a device, each by the law of its class.

Classes with the vector units and those with the matrix units of a device have figures of their own:
`gemm` and `gemm-float32`, `conv` and `conv-float32`. Nothing is faster than the peak of its dtype.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy

from graphplan.cost.laws.attention import price_attentions
from graphplan.cost.laws.convolution import price_convolutions
from graphplan.cost.laws.gemm import Floats, price_products
from graphplan.cost.laws.kernel import Attention, Kernel, Product, Rows, Stream
from graphplan.cost.laws.memory import price_rows, price_streams
from graphplan.cost.laws.residual import correct_seconds
from graphplan.nouns.cluster import DeviceType, Law

VECTOR_DTYPES = frozenset({"float32", "float64"})
"""Dtypes that matrix units of GPUs leave to the others unless told otherwise (tf32)."""
LEARNED_DTYPES = frozenset({"bfloat16", "float16", "float32"})
"""Dtypes of the measured kernels: no residual is known of others."""
PLAIN = Law(figures={})


def find_rate(device: DeviceType, dtype: str) -> float:
    """Peak FLOPs per second of a dtype; one without units of its own runs at the float32 rate."""
    rates = device.flops_per_s_by_dtype
    if dtype in rates:
        return rates[dtype]
    return rates["float32"] if "float32" in rates else min(rates.values())


def find_law(kernel: Kernel, device: DeviceType) -> tuple[str, Law]:
    """Name of the law that prices a kernel, and the device's figures for it."""
    name = _name_law(kernel, device)
    plain = name.replace("bmm", "gemm")
    names = (name, plain, plain.partition("-")[0])
    return name, next((device.laws[each] for each in names if each in device.laws), PLAIN)


def _name_law(kernel: Kernel, device: DeviceType) -> str:
    if isinstance(kernel, Rows):
        return kernel.kind
    if isinstance(kernel, Stream):
        return "stream"
    vector = kernel.dtype in VECTOR_DTYPES or kernel.dtype not in device.flops_per_s_by_dtype
    if isinstance(kernel, Product):
        name = "bmm" if kernel.batch > 1 and vector else "gemm"
    else:
        name = "attention" if isinstance(kernel, Attention) else "conv"
    return f"{name}-float32" if vector else name


def price_kernels(kernels: Sequence[Kernel], device: DeviceType) -> list[float]:
    """Seconds of every kernel; equal ones are priced once."""
    groups: dict[tuple[type, str, str], list[Kernel]] = defaultdict(list)
    for kernel in dict.fromkeys(kernels):
        dtype = "" if isinstance(kernel, Stream | Rows) else kernel.dtype
        groups[type(kernel), find_law(kernel, device)[0], dtype].append(kernel)
    seconds: dict[Kernel, float] = {}
    for group in groups.values():
        seconds |= zip(group, price_group(group, device).tolist(), strict=True)
    return [seconds[kernel] for kernel in kernels]


def price_group(group: Sequence[Kernel], device: DeviceType) -> Floats:
    """Seconds of kernels of one type, dtype and law."""
    first = group[0]
    figures = find_law(first, device)[1].figures
    if isinstance(first, Stream):
        return price_streams(numpy.array(group, float), device, figures)
    if isinstance(first, Rows):
        return price_rows(numpy.array([each[1:] for each in group], float), device, figures)
    rate = find_rate(device, first.dtype)
    items = numpy.array([each[1] for each in group], float)
    sizes = numpy.array([each[2:] for each in group], float)
    if isinstance(first, Product):
        fill_rate = rate if first.dtype in VECTOR_DTYPES else find_rate(device, "float16")
        found = price_products(sizes, items, device, rate, figures, fill_rate=fill_rate)
    elif isinstance(first, Attention):
        found = price_attentions(sizes, items, device, rate, figures)
    else:
        found = price_convolutions(sizes, items, device, rate, figures)
    if first.dtype in LEARNED_DTYPES and not getattr(first, "backward", False):
        found = correct_seconds(find_law(first, device)[0], sizes, found, device, rate)
    flops = numpy.array([each.flops for each in group])
    return numpy.maximum(found, flops / rate)
