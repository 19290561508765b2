"""Nouns validate themselves, print short, and parse back."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphplan.nouns.cluster import Cluster, DeviceType, Link, Node
from graphplan.nouns.opgraph import Op, OpGraph, Weight
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import Message, PricedStages, StagePrice, TransferPrice
from graphplan.nouns.schedule import parse_program, parse_schedule
from graphplan.nouns.stages import Stage, StageEdge, StageGraph
from graphplan.nouns.task import Task, Transfer, parse_instruction, parse_task
from graphplan.nouns.tensor import TensorSpec, format_dim, parse_dim

counts = st.integers(0, 10**6)
tasks = st.builds(Task, counts, st.sampled_from("FBIWRU"), counts)
transfers = st.builds(Transfer, counts, counts, st.sampled_from("FB"), counts)


@given(tasks | transfers)
def test_instructions_parse_back(instruction: Task | Transfer) -> None:
    """The text of a task or transfer is its whole value."""
    assert parse_instruction(str(instruction)) == instruction


@pytest.mark.parametrize("text", ["2F0garbage", "2X0", "F0", "02F1", "1F", "-1F0", "0>2W3", " 1F0"])
def test_bad_instructions_are_refused(text: str) -> None:
    """Anything but the exact text form is an error."""
    with pytest.raises(ValueError, match="is not a task"):
        parse_instruction(text)


def test_a_schedule_parses_back() -> None:
    """One line for each device."""
    text = "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"
    assert str(parse_schedule(text, name="1f1b")) == text
    lowered = "0F0 0>1F0 1>0B0 0B0\n0>1F0 1F0 1B0 1>0B0"
    assert str(parse_program(lowered)) == lowered
    assert parse_task("1B0") == Task(1, "B", 0)


@given(st.integers(0, 99), st.integers(-99, 99))
def test_dimensions_parse_back(scale: int, offset: int) -> None:
    """An affine dimension prints and parses to the same pair."""
    assert parse_dim(format_dim(scale, offset)) == (scale, offset)


def test_a_tensor_knows_its_bytes() -> None:
    """Sizes follow the batch."""
    spec = TensorSpec(dtype="bfloat16", shape=("b", "12*b+1", 3))
    assert spec.sizes(2) == (2, 25, 3)
    assert spec.num_bytes(2) == 300
    assert str(spec) == "bfloat16[b, 12*b+1, 3]"
    assert spec.has_batch
    for bad in ({"dtype": "float7", "shape": ()}, {"dtype": "int8", "shape": ("2*c",)}):
        with pytest.raises(ValueError, match=r"float7|'2\*c'"):
            TensorSpec(**bad)  # type: ignore[arg-type]


def make_op(name: str, *inputs: str, **fields: object) -> Op:
    """An op that computes nothing in particular."""
    return Op(name=name, target="aten.relu.default", call="relu(%0)", inputs=inputs, **fields)  # type: ignore[arg-type]


def test_a_graph_refuses_what_cannot_run() -> None:
    """Ops come after what they read, and names are unique."""
    fields = {"name": "g", "batch": "none", "batch_size": 1, "inputs": (), "weights": ()}
    with pytest.raises(ValueError, match="'b' reads 'a' before"):
        OpGraph(**fields, ops=(make_op("b", "a"), make_op("a")), outputs=())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two values are called 'a'"):
        OpGraph(**fields, ops=(make_op("a"), make_op("a")), outputs=())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown weight 'w'"):
        OpGraph(**fields, ops=(make_op("a", weights=("w",)),), outputs=())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="returns 'z'"):
        OpGraph(**fields, ops=(make_op("a"),), outputs=("z",))  # type: ignore[arg-type]


def test_the_fingerprint_sees_the_model_and_nothing_else() -> None:
    """Another op or weight changes it; the name or how it was captured does not."""
    weight = Weight(
        name="w", kind="parameter", spec=TensorSpec(dtype="float32", shape=(3,)), trainable=True
    )
    graph = OpGraph(
        name="g",
        batch="none",
        batch_size=1,
        inputs=(),
        weights=(weight,),
        ops=(make_op("a", weights=("w",)),),
        outputs=("a",),
    )
    replace = msgspec.structs.replace
    assert replace(graph, name="h", capture="otherwise").fingerprint == graph.fingerprint
    frozen = replace(weight, trainable=False)
    assert replace(graph, weights=(frozen,)).fingerprint != graph.fingerprint
    assert replace(graph, ops=(make_op("a"),)).fingerprint != graph.fingerprint


GPU = DeviceType(
    name="gpu",
    memory_bytes=1000,
    bandwidth_bytes_per_s=100.0,
    flops_per_s_by_dtype={"float32": 1e3},
)


def test_channels_follow_the_scope_of_the_link() -> None:
    """Pairs have their own wire, devices or nodes share a port."""
    inside = Link(bandwidth_bytes_per_s=10, latency_s=0.1)
    between = Link(bandwidth_bytes_per_s=1, latency_s=1, scope="node")
    node = Node(devices=("gpu", "gpu"), link=inside)
    cluster = Cluster(name="c", types=(GPU,), nodes=(node, node), link=between)
    assert [device.node for device in cluster.devices] == [0, 0, 1, 1]
    assert cluster.devices[0].memory_bytes == 900
    assert cluster.link_between(0, 1) is inside
    assert cluster.channel_between(0, 1) == "d0>d1"
    assert {cluster.channel_between(0, 2), cluster.channel_between(1, 3)} == {"n0>>"}
    with pytest.raises(ValueError, match="'tpu' is not described"):
        Cluster(name="c", types=(GPU,), nodes=(Node(devices=("tpu",), link=inside),), link=between)


def test_stages_share_all_devices_or_none() -> None:
    """A device group is the unit of placement."""
    a = Stage(ops=("a",), devices=(0, 1), micro_batch_size=2)
    b = Stage(ops=("b",), devices=(1, 2), micro_batch_size=2)
    with pytest.raises(ValueError, match="must share all their devices or none"):
        StageGraph(stages=(a, b), edges=())
    spec = TensorSpec(dtype="float32", shape=("b",))
    with pytest.raises(ValueError, match="does not point to a later stage"):
        StageGraph(stages=(a,), edges=(StageEdge(src=0, dst=0, value="x", spec=spec),))


def test_versions_kept_by_policy() -> None:
    """The table of weight versions, for warm-ups 2, 1, 0."""
    names = ("flush", "naive", "stash", "vertical-sync", "2bw", "predict", "spectrain1", "local")
    kept = {
        name: [WeightPolicy(name=name, warmups=(2, 1, 0)).num_versions(s) for s in range(3)]  # type: ignore[arg-type]
        for name in names
    }
    assert kept == {
        "flush": [1, 1, 1],
        "naive": [1, 1, 1],
        "stash": [3, 2, 1],
        "vertical-sync": [3, 3, 3],
        "2bw": [2, 2, 2],
        "predict": [2, 2, 2],
        "spectrain1": [2, 2, 2],
        "local": [1, 1, 1],
    }


def test_a_transfer_leads_from_a_stage_to_a_stage() -> None:
    """A plan file that named a stage too many ended in a traceback."""
    price = StagePrice(
        devices=(0,),
        micro_batch_size=1,
        forward_s=1.0,
        backward_s=2.0,
        input_grad_s=1.0,
        weight_grad_s=1.0,
    )
    with pytest.raises(ValueError, match="transfer 0>4 has an end without stage"):
        PricedStages(
            batch_size=1,
            stages=(price,),
            edges=(),
            backward_edges=(),
            transfers=(TransferPrice(src=0, dst=4, backward=False, messages=()),),
            memory_bytes_by_device=(1,),
        )
    far = Message(src=0, dst=1000, bytes=1, seconds=1.0, latency_s=0.0, channel="c")
    with pytest.raises(ValueError, match="goes from device 0 to 1000, where its stages are not"):
        PricedStages(
            batch_size=1,
            stages=(price, price),
            edges=((0, 1),),
            backward_edges=(),
            transfers=(TransferPrice(src=0, dst=1, backward=False, messages=(far,)),),
            memory_bytes_by_device=(1,),
        )


def test_a_stage_shards_over_replicas_and_recomputes_its_own_ops() -> None:
    """Levels need replicas; recomputed ops are the stage's, in its order."""
    fields = {"ops": ("a", "b", "c"), "micro_batch_size": 2}
    stage = Stage(**fields, devices=(0, 1), zero=3, recompute=("a", "c"))  # type: ignore[arg-type]
    assert (stage.zero, stage.recompute) == (3, ("a", "c"))
    with pytest.raises(ValueError, match="zero 1 shards over replicas"):
        Stage(**fields, devices=(0,), zero=1)  # type: ignore[arg-type]
    for recompute in (("d",), ("c", "a"), ("a", "a")):
        with pytest.raises(ValueError, match="not ops of the stage in its order"):
            Stage(**fields, devices=(0,), recompute=recompute)  # type: ignore[arg-type]
