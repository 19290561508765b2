"""FLOPs and bytes of single calls against figures computed by hand."""

from __future__ import annotations

import msgspec
import pytest

from graphplan.cost.flops import Work, count_work, find_weight_values
from graphplan.cost.saved import count_saved_bytes
from graphplan.nouns.opgraph import Op, OpGraph
from graphplan.nouns.tensor import TensorSpec
from tests.pure.opgraphs import graph, mlp, op, spec


def count_call(
    call: str,
    values: list[TensorSpec],
    output: TensorSpec | None,
    weights: list[TensorSpec] | None = None,
    *,
    batch_size: int = 4,
    alias: bool = False,
    results: tuple[TensorSpec, ...] = (),
) -> Work:
    """The work of one call whose operands all come from trained ops."""
    inputs = {f"x{i}": each for i, each in enumerate(values)}
    named = {f"w{i}": each for i, each in enumerate(weights or [])}
    ops = [op(f"y{i}", f"relu(%{0})", (f"x{i}",), each) for i, each in enumerate(values)]
    sources = tuple(each.name for each in ops)
    source = sources[0] if alias else None
    ops.append(op("z", call, sources, output, weights=tuple(named), alias=source))
    for i, each in enumerate(results):
        ops.append(Op(name=f"g{i}", target="operator.getitem", call=f"getitem(%0, {i})",
                      inputs=("z",), output=each, alias="z"))  # fmt: skip
    return count_work(graph(ops, inputs=inputs, weights=named), batch_size)["z"]


def flops_of(work: Work) -> tuple[int, int, int]:
    """Forward, input-gradient and weight-gradient FLOPs."""
    return work.forward_flops, work.input_grad_flops, work.weight_grad_flops


def test_linear_repeats_the_forward_for_each_gradient() -> None:
    """Input and weight gradients cost one product each; the bias adds bytes only."""
    work = count_call(
        "linear(%0, @0, @1)", [spec("b", 3, 8)], spec("b", 3, 16), [spec(16, 8), spec(16)]
    )
    product = 2 * 4 * 3 * 8 * 16
    assert flops_of(work) == (product, product, product)
    assert work.forward_bytes == 4 * (4 * 3 * 8 + 4 * 3 * 16 + 16 * 8 + 16)


CALLS = {
    "matmul": ("matmul(%0, %1)", [spec("b", 5, 8), spec("b", 8, 6)], spec("b", 5, 6), [], 2),
    "addmm": ("addmm(@0, %0, %1)", [spec("b", 8), spec(8, 6)], spec("b", 6), [spec(6)], 2),
    "bmm": ("bmm(%0, %1)", [spec("b", 5, 8), spec("b", 8, 6)], spec("b", 5, 6), [], 2),
    "einsum": (
        "einsum('bik,bkj->bij', [%0, %1])",
        [spec("b", 5, 8), spec("b", 8, 6)],
        spec("b", 5, 6),
        [],
        2,
    ),
    "einsum with dots": (
        "einsum('...ik,kj->...ij', [%0, %1])",
        [spec("b", 5, 8), spec(8, 6)],
        spec("b", 5, 6),
        [],
        2,
    ),
    "tensordot": ("tensordot(%0, %1, [1], [0])", [spec("b", 8), spec(8, 6)], spec("b", 6), [], 2),
}
PRODUCTS = {"addmm": 2 * 4 * 8 * 6, "tensordot": 2 * 4 * 8 * 6}


@pytest.mark.parametrize("name", CALLS)
def test_products_cost_two_flops_for_each_multiply_add(name: str) -> None:
    """Products of two activations have two input gradients and no weight gradient."""
    call, values, output, weights, num_gradients = CALLS[name]
    work = count_call(call, values, output, weights)
    product = PRODUCTS.get(name, 2 * 4 * 5 * 8 * 6)
    assert flops_of(work) == (product, num_gradients * product, 0)
    assert bool(work.weight_grad_bytes) == bool(weights)


def test_convolutions_count_groups_and_transposition() -> None:
    """A grouped convolution has a share of the products, a transposed one counts its input."""
    image, out = spec("b", 8, 10, 10), spec("b", 16, 5, 5)
    plain = count_call("conv2d(%0, @0, None, [2, 2], [1, 1])", [image], out, [spec(16, 8, 3, 3)])
    grouped = count_call(
        "conv2d(%0, @0, None, [2, 2], [1, 1], [1, 1], 4)", [image], out, [spec(16, 2, 3, 3)]
    )
    assert flops_of(plain) == (2 * 4 * 16 * 25 * 8 * 9,) * 3
    assert plain.forward_flops == 4 * grouped.forward_flops
    up = count_call(
        "conv_transpose2d(%0, @0, None, [2, 2])", [out], spec("b", 8, 10, 10), [spec(16, 8, 2, 2)]
    )
    assert flops_of(up) == (2 * 4 * 16 * 25 * 8 * 4,) * 3
    same = count_call(
        "convolution(%0, @0, None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1)",
        [out],
        spec("b", 8, 10, 10),
        [spec(16, 8, 2, 2)],
    )
    assert flops_of(same) == flops_of(up)


def test_attention_recomputes_its_scores_in_the_backward() -> None:
    """Two products forward, five backward; grouped queries count by query heads."""
    query, key = spec("b", 8, 32, 16), spec("b", 2, 64, 16)
    work = count_call("scaled_dot_product_attention(%0, %1, %2)", [query, key, key], query)
    forward = 2 * 2 * 4 * 8 * 32 * 64 * 16
    assert flops_of(work) == (forward, forward * 5 // 2, 0)


@pytest.mark.parametrize(
    "mark", ["None, 0.0, True", "is_causal=True", "None, 0.1, True, scale=2.0"]
)
def test_causal_attention_counts_what_the_mask_leaves(mark: str) -> None:
    """Query i sees i + 1 keys, so that equal lengths cost about half."""
    query = spec("b", 8, 32, 16)
    call = f"scaled_dot_product_attention(%0, %1, %2, {mark})"
    work = count_call(call, [query, query, query], query)
    assert work.forward_flops == 2 * 2 * 4 * 8 * (32 * 33 // 2) * 16


def test_an_lstm_multiplies_every_matrix_at_every_step() -> None:
    """Layers and directions are counted through their weight matrices."""
    weights = [spec(64, 8), spec(64, 16), spec(64), spec(64)]
    work = count_call(
        "lstm(%0, [%1, %2], [@0, @1, @2, @3], True, 1, 0.0, True, False, True)",
        [spec("b", 7, 8), spec(1, "b", 16), spec(1, "b", 16)],
        None,
        weights,
        results=(spec("b", 7, 16),),
    )
    product = 2 * 4 * 7 * 64 * (8 + 16)
    assert flops_of(work) == (product, product, product)


def test_embeddings_read_rows_and_write_dense_gradients() -> None:
    """The forward touches the looked-up rows, the weight gradient the whole table."""
    table, rows = spec(1000, 64), spec("b", 5, 64)
    source = {"i": spec("b", 5, dtype="int64")}
    ops = [op("e", "embedding(@0, %0)", ("i",), rows, weights=("w",))]
    work = count_work(graph(ops, inputs=source, weights={"w": table}), 4)["e"]
    looked_up = 4 * 5 * 64 * 4
    assert work.forward_bytes == 4 * 5 * 8 + 2 * looked_up
    assert work.weight_grad_bytes == 2 * looked_up + 1000 * 64 * 4
    assert work.input_grad_bytes == 0


def test_bags_read_every_row_of_the_bag() -> None:
    """An embedding bag reads one row for every index though it returns one for every bag."""
    ops = [op("e", "embedding_bag(@0, %0)", ("i",), spec("b", 64), weights=("w",))]
    inputs = {"i": spec("b", 100, dtype="int64")}
    work = count_work(graph(ops, inputs=inputs, weights={"w": spec(10**6, 64)}), 2)["e"]
    assert work.forward_bytes == 2 * 100 * (8 + 64 * 4) + 2 * 64 * 4


def test_views_are_free_and_parts_of_tensors_cost_their_backward() -> None:
    """A transpose costs nothing; the gradient of a slice fills a whole tensor."""
    free = count_call("transpose(%0, 0, 1)", [spec("b", 8)], spec(8, "b"), alias=True)
    assert (free.forward_bytes, free.input_grad_bytes, free.live_bytes) == (0, 0, 0)
    part = count_call("slice(%0, 1, 0, 4)", [spec("b", 8)], spec("b", 4), alias=True)
    assert (part.forward_bytes, part.input_grad_bytes) == (0, 4 * 4 * (4 + 8))


def test_sums_pass_their_gradient_on() -> None:
    """The backward of an addition is free, unless an operand was broadcast."""
    same = count_call("add(%0, %1)", [spec("b", 8), spec("b", 8)], spec("b", 8))
    assert (same.input_grad_flops, same.input_grad_bytes) == (0, 0)
    bias = count_call("add(%0, @0)", [spec("b", 8)], spec("b", 8), [spec(8)])
    assert (bias.weight_grad_flops, bias.weight_grad_bytes) == (4 * 8, 4 * (4 * 8 + 8))


def test_frozen_weights_and_first_layers_have_no_gradients() -> None:
    """Model inputs need no gradient; frozen layers at the front have no backward at all."""
    work = count_work(mlp(3, 8, frozen=("w0", "w1")), 4)
    product = 2 * 4 * 8 * 8
    assert flops_of(work["l0"]) == (product, 0, 0)
    assert flops_of(work["l1"]) == (product, 0, 0)
    assert flops_of(work["l2"]) == (product, 0, product)
    assert flops_of(count_work(mlp(2, 8, frozen=("w1",)), 4)["l1"]) == (product, product, 0)


def transposed_weight() -> OpGraph:
    """mm(x, t(w)), as captures write a linear layer."""
    ops = [
        op("a", "relu(%0)", ("x",), spec("b", 8)),
        op("t", "t(@0)", (), spec(8, 6), weights=("w",), alias="w"),
        op("m", "mm(%0, %1)", ("a", "t"), spec("b", 6)),
    ]
    return graph(ops, inputs={"x": spec("b", 8)}, weights={"w": spec(6, 8)})


def test_values_made_of_weights_alone_count_as_weights() -> None:
    """The gradient towards a transposed weight is in the weight half."""
    assert find_weight_values(transposed_weight()) == {"t"}
    product = 2 * 4 * 8 * 6
    assert flops_of(count_work(transposed_weight(), 4)["m"]) == (product, product, product)


def test_precision_halves_bytes_and_names_the_rate() -> None:
    """Under bfloat16 floating tensors take two bytes, integers stay."""
    full, half = count_work(mlp(1, 8), 4), count_work(mlp(1, 8), 4, precision="bfloat16")
    assert half["l0"].forward_bytes * 2 == full["l0"].forward_bytes
    assert (full["l0"].dtype, half["l0"].dtype) == ("float32", "bfloat16")
    assert half["l0"].forward_flops == full["l0"].forward_flops


def test_autocast_decides_the_rate() -> None:
    """An op of an autocast block computes in the block's dtype."""
    call = "autocast[cuda, bfloat16].aten.linear.default(%0, @0)"
    ops = [Op(name="l", target="aten.linear.default", call=call, inputs=("x",), weights=("w",),
              output=spec("b", 8), needs_backward=True)]  # fmt: skip
    found = count_work(graph(ops, inputs={"x": spec("b", 8)}, weights={"w": spec(8, 8)}), 4)["l"]
    assert (found.dtype, found.kind) == ("bfloat16", "matmul")


def test_saved_bytes_count_every_storage_once() -> None:
    """Two ops that keep the same value hold it once; what an op keeps besides is added."""
    ops = [
        op("a", "relu(%0)", ("x",), spec("b", 8)),
        op("b", "mul(%0, %0)", ("a",), spec("b", 8)),
        op("c", "mul(%0, %1)", ("a", "b"), spec("b", 8)),
    ]
    saved = [("a",), ("a",), ("a", "b")]
    kept = [
        msgspec.structs.replace(each, saved=names, saved_bytes=(16, 3))
        for each, names in zip(ops, saved, strict=True)
    ]
    found = graph(kept, inputs={"x": spec("b", 8)})
    assert count_saved_bytes(found, 4) == 2 * 4 * 8 * 4 + 3 * (16 + 3 * 4)


@pytest.mark.parametrize(
    "call",
    ["layer_norm(%0, [8], @0)", "softmax(%0, -1)", "gelu(%0)", "dropout(%0, 0.1, True)",
     "max_pool2d(%0, [2, 2])", "cross_entropy_loss(%0, %1)", "scatter_add(%0, 0, %1, %2)",
     "index_select(%0, 0, %1)", "my_own_kernel(%0)", "sort(%0)"],
)  # fmt: skip
def test_every_other_kind_moves_bytes_both_ways(call: str) -> None:
    """Ops without matrix products have bytes forward and backward, and few FLOPs."""
    values = [spec("b", 8), spec("b", 8, dtype="int64"), spec("b", 8)][: call.count("%")]
    work = count_call(call, values, spec("b", 8), [spec(8)] if "@" in call else [])
    assert work.forward_bytes >= 2 * 4 * 8 * 4
    assert work.input_grad_bytes >= 4 * 8 * 4
    assert work.counted_flops == 0


@pytest.mark.parametrize("name", ["_grouped_mm", "grouped_mm_fallback"])
def test_grouped_products_of_experts_have_a_formula(name: str) -> None:
    """Every row meets the matrix of one expert; the backward has two such products."""
    rows, experts = spec("12*b", 32), spec(8, 32, 64)
    work = count_call(f"{name}(%0, %1)", [rows, experts], spec("12*b", 64))
    product = 2 * 4 * 12 * 32 * 64
    assert flops_of(work) == (product, 2 * product, 0)
    assert work.forward[0].flops >= product


def test_ops_without_a_formula_are_never_free() -> None:
    """An unknown op moves its bytes; one of unknown size takes a launch, and both are named."""
    from graphplan.cost.hardware import find_device_type
    from graphplan.cost.unpriced import describe_unpriced, find_unpriced

    ops = [
        Op(name="a", target="mine.attend.default", call="attend(%0)", inputs=("x",),
           output=spec("b", 64)),
        Op(name="c", target="aten.nonzero_static.default", call="nonzero_static(%0)",
           inputs=("a",)),
        op("d", "relu(%0)", ("a",), spec("b", 64)),
    ]  # fmt: skip
    net = graph(ops, inputs={"x": spec("b", 64)})
    device = find_device_type("h100")
    found = find_unpriced(net, device, 4)
    assert {each.target for each in found} == {"mine.attend.default", "aten.nonzero_static.default"}
    assert all(each.share > 0 for each in found)
    assert "mine.attend.default (1, " in describe_unpriced(found)
    hinted = msgspec.structs.replace(device, overhead_s_by_kind={"attend.forward": 1e-3})
    assert len(find_unpriced(net, hinted, 4)) == 1
    assert describe_unpriced(()) == ""
