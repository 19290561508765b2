"""Laws: nothing above the peak, more work never takes less, and what they are for."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphplan.cost.hardware import find_cluster, find_device_type, list_device_types
from graphplan.cost.laws.kernel import Attention, Convolution, Product, Rows, Stream, count_seen
from graphplan.cost.laws.price import find_rate, price_kernels
from graphplan.cost.links import collective_time

GPUS = [name for name in list_device_types() if name != "cpu"]
SIZES = st.integers(1, 1 << 15)
DTYPES = st.sampled_from(["float32", "bfloat16", "float16"])


@given(st.sampled_from(GPUS), DTYPES, st.integers(1, 64), SIZES, SIZES, SIZES)
def test_no_product_exceeds_the_peak_and_more_rows_take_longer(
    name: str, dtype: str, batch: int, rows: int, columns: int, inner: int
) -> None:
    """Any product, on any device, in any dtype; residuals know of single sizes."""
    device = find_device_type(name)
    plain = msgspec.structs.replace(device, residual=None)
    item = 4 if dtype == "float32" else 2
    small = Product(dtype, item, batch, rows, columns, inner)
    twice = small._replace(rows=2 * rows)
    first, second = price_kernels([small, twice], plain)
    assert second >= first * (1 - 1e-9)
    learned = price_kernels([small], device)[0]
    assert min(first, learned) >= small.flops / find_rate(device, dtype)
    assert 0.6 < learned / first < 1.7


@given(
    st.sampled_from(GPUS), st.integers(1, 16), st.integers(1, 64), st.integers(1, 1 << 14),
    st.sampled_from([32, 64, 80, 96, 128, 256, 512]), st.booleans(),
)  # fmt: skip
def test_causal_attention_is_never_slower_than_full(
    name: str, batch: int, heads: int, length: int, head: int, backward: bool
) -> None:
    """A mask only removes work, and never more than there is at the peak."""
    device = find_device_type(name)
    full = Attention("float16", 2, batch, heads, heads, length, length, head, False, backward)
    causal = full._replace(causal=True)
    slow, fast = price_kernels([full, causal], msgspec.structs.replace(device, residual=None))
    assert fast <= slow * (1 + 1e-9)
    assert min(fast, *price_kernels([causal], device)) >= causal.flops / find_rate(
        device, "float16"
    )


def test_long_causal_attention_costs_about_half() -> None:
    """What was counted in full before."""
    device = find_device_type("h100")
    full = Attention("bfloat16", 2, 4, 32, 32, 8192, 8192, 128, False, False)
    slow, fast = price_kernels([full, full._replace(causal=True)], device)
    assert 1.7 < slow / fast < 2.1
    assert count_seen(3, 5, causal=True) == 1 + 2 + 3
    assert count_seen(5, 3, causal=True) == 1 + 2 + 3 + 3 + 3


@pytest.mark.parametrize("name", GPUS)
def test_small_products_reach_less_of_the_peak(name: str) -> None:
    """Efficiency grows with size: that is why larger micro-batches pay."""
    device = find_device_type(name)
    kernels = [Product("float16", 2, 1, rows, 4096, 4096) for rows in (16, 128, 1024)]
    shares = [
        kernel.flops / find_rate(device, "float16") / seconds
        for kernel, seconds in zip(kernels, price_kernels(kernels, device), strict=True)
    ]
    assert shares == sorted(shares)
    assert shares[0] < 0.3 < shares[-1] <= 1


def test_kernels_bound_by_memory_grow_with_their_bytes() -> None:
    """A stream at the reached bandwidth; long rows are read again; convolutions are products."""
    device = find_device_type("a100-80gb-pcie")
    small, large = price_kernels([Stream(1 << 20), Stream(1 << 30)], device)
    assert large == pytest.approx(
        (1 << 30) / (device.laws["stream"].figures["memory"] * 1935e9), rel=0.01
    )
    assert small < large / 100
    short, long = price_kernels(
        [Rows("softmax", 4, 1 << 16, 256, 2.0), Rows("softmax", 4, 1 << 10, 1 << 14, 2.0)], device
    )
    assert long > short
    image = Convolution("float32", 4, 1, 1 << 14, 256, 2304, 9, 1 << 26, False, 1 << 14)
    assert price_kernels([image], device)[0] >= image.flops / 19.5e12


@pytest.mark.parametrize("name", ["v100-32gb-pcie", "a100-80gb-pcie", "t4"])
def test_winograds_way_is_taken_where_it_is_shorter(name: str) -> None:
    """Wide images gain, a stride or another filter does not, and sums over positions are split."""
    device = msgspec.structs.replace(find_device_type(name), residual=None)
    square = Convolution("float32", 4, 1, 64 * 28 * 28, 256, 2304, 9, 1 << 26, True, 64 * 28 * 28)
    strided = square._replace(unit_stride=False)
    cropped = square._replace(padded=2 * square.padded)
    fast, slow, padded = price_kernels([square, strided, cropped], device)
    assert square.flops / find_rate(device, "float32") <= fast < padded <= slow
    filters = square._replace(positions=2304, channels=64, inner=64 * 28 * 28, unit_stride=False)
    split, whole = price_kernels([filters._replace(padded=0), filters], device)
    assert split < 0.8 * whole


def test_residuals_go_by_the_chip() -> None:
    """H200 is corrected as H100 is; a chip that a class was not measured on is left to the law."""
    kernel = Product("bfloat16", 2, 1, 4096, 8192, 8192)

    def correct(name: str, chip: str | None) -> float:
        device = msgspec.structs.replace(find_device_type(name), residual=chip)
        return price_kernels([kernel], device)[0]

    factors = [correct(name, "h100") / correct(name, None) for name in ("h100", "h200")]
    assert factors[0] == pytest.approx(factors[1], rel=0.02)
    assert factors[0] != 1
    assert correct("h100", "l40s") != correct("h100", "h100")
    assert correct("h100", "v100") == correct("h100", None)


def test_a_device_without_laws_is_a_roofline() -> None:
    """FLOPs over peak or bytes over bandwidth, and a launch."""
    device = msgspec.structs.replace(find_device_type("a100-80gb"), laws={}, num_units=0)
    product = Product("bfloat16", 2, 1, 4096, 4096, 4096)
    assert price_kernels([product], device)[0] == pytest.approx(product.flops / 312e12, rel=0.02)


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "dgx-b200", "pcie-8"])
def test_collectives_grow_with_bytes_and_devices(name: str) -> None:
    """More bytes never take less; gathering takes less than reducing."""
    link = find_cluster(name).nodes[0].link
    for count in (2, 4, 8):
        times = [collective_time(link, "all_reduce", count, 4.0**k) for k in range(4, 16)]
        assert times == sorted(times)
        for k in range(4, 16):
            gather = collective_time(link, "all_gather", count, 4.0**k)
            assert gather < collective_time(link, "all_reduce", count, 4.0**k)
    large = [collective_time(link, "all_reduce", count, 1e9) for count in (2, 4, 8)]
    assert large == sorted(large)


def test_eight_cards_behind_host_bridges_starve() -> None:
    """Without peer access, eight L40S get less than 2 GB/s where two get 20."""
    link = find_cluster("pcie-8").nodes[0].link
    bus = {
        n: 2 * (n - 1) / n * 1e9 / collective_time(link, "all_reduce", n, 1e9) for n in (2, 4, 8)
    }
    assert 15e9 < bus[2] < 25e9
    assert 4e9 < bus[4] < 7e9
    assert 1e9 < bus[8] < 2e9
