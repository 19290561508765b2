"""What the OpGraph of a captured model says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from graphplan.errors import CaptureError
from graphplan.files import decode_noun, encode_noun
from graphplan.frontend import Captured, trace_module
from graphplan.frontend.writes import storage_of
from graphplan.nouns.opgraph import OpGraph, Weight
from graphplan.nouns.tensor import TensorSpec
from tests.torch.comparing import assert_same_step, run_step

ROOT = Path(__file__).resolve().parents[2]


class Language(nn.Module):
    """A small language model with tied weights, a frozen layer and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.mix = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.tokens.weight
        self.scale = torch.tensor([2.0])

    def forward(self, tokens: Tensor) -> Any:
        x = self.frozen(self.tokens(tokens)) * self.scale
        return self.head(self.mix(x)[0])


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), batch["targets"].flatten())


def inputs(batch_size: int) -> dict[str, Tensor]:
    tokens = torch.arange(batch_size * 5).reshape(batch_size, 5) % 10
    return {"tokens": tokens, "targets": tokens}


@pytest.fixture(scope="module")
def captured() -> Captured:
    torch.manual_seed(0)
    return trace_module(Language(), inputs, loss=loss)


def test_ops_have_names_modules_values_and_weights(captured: Captured) -> None:
    """The whole graph, one line for each op."""
    lines = [
        f"{op.name} = {op.call} <- {', '.join((*op.inputs, *op.weights))}"
        f" : {op.output} in {op.module or '-'}"
        for op in captured.graph.ops
    ]
    lstm = "mix.weight_ih_l0, mix.weight_hh_l0, mix.bias_ih_l0, mix.bias_hh_l0"
    assert lines == [
        "embedding = aten.embedding.default(@0, %0) <- tokens, tokens.weight"
        " : float32[b, 5, 8] in tokens",
        "linear = aten.linear.default(%0, @0, @1) <- embedding, frozen.weight, frozen.bias"
        " : float32[b, 5, 8] in frozen",
        "mul = aten.mul.Tensor(%0, @0) <- linear, scale : float32[b, 5, 8] in -",
        "zeros = aten.zeros.default([1, b, 8], dtype=float32) <-  : float32[1, b, 8] in mix",
        "zeros_1 = aten.zeros.default([1, b, 8], dtype=float32) <-  : float32[1, b, 8] in mix",
        "lstm = aten.lstm.input(%0, [%1, %2], [@0, @1, @2, @3], True, 1, 0.0, True, False, True)"
        f" <- mul, zeros, zeros_1, {lstm} : None in mix",
        "getitem = getitem(%0, 0) <- lstm : float32[b, 5, 8] in mix",
        "linear_1 = aten.linear.default(%0, @0) <- getitem, tokens.weight"
        " : float32[b, 5, 10] in head",
        "flatten = aten.flatten.using_ints(%0, 0, 1) <- linear_1 : float32[5*b, 10] in loss",
        "flatten_1 = aten.flatten.using_ints(%0) <- targets : int64[5*b] in loss",
        "cross_entropy_loss = aten.cross_entropy_loss.default(%0, %1) <- flatten, flatten_1"
        " : float32[] in loss",
    ]
    assert captured.graph.outputs == ("cross_entropy_loss",)
    assert captured.graph.loss == "cross_entropy_loss"
    assert [(each.name, each.path, str(each.spec)) for each in captured.graph.inputs] == [
        ("tokens", "tokens", "int64[b, 5]"),
        ("targets", "targets", "int64[b, 5]"),
    ]


def test_weights_have_kinds_and_aliases(captured: Captured) -> None:
    """Tied weights appear once; constants and frozen parameters are told apart."""
    weights = captured.graph.weight_by_name
    assert weights["tokens.weight"] == Weight(
        name="tokens.weight",
        kind="parameter",
        spec=TensorSpec(dtype="float32", shape=(10, 8)),
        trainable=True,
        aliases=("head.weight",),
    )
    assert weights["head.weight"] is weights["tokens.weight"]
    assert not weights["frozen.weight"].trainable
    assert weights["scale"].kind == "constant"


def test_frozen_weights_do_not_stop_the_gradient(captured: Captured) -> None:
    """The embedding before a frozen layer still needs a backward, integers never do."""
    needs = {op.name: op.needs_backward for op in captured.graph.ops}
    assert needs["embedding"] and needs["linear"] and needs["cross_entropy_loss"]
    assert not needs["zeros"] and not needs["flatten_1"]


def test_frozen_parts_in_front_need_no_backward() -> None:
    """Nothing is differentiated, and nothing saved, before the first trained weight."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    graph = trace_module(model, lambda b: (torch.randn(b, 4),)).graph
    assert [(op.kind, op.needs_backward, op.saved) for op in graph.ops] == [
        ("linear", False, ()),
        ("relu", False, ()),
        ("linear", True, ("relu",)),
    ]


def test_views_name_the_owner_of_their_memory() -> None:
    """Through chains of views and results of a split, and for views of weights."""

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Any:
            y = torch.relu(x)
            first, second = y.view(-1, 2, 2).transpose(1, 2).chunk(2, dim=1)
            return (first * second).flatten(1) @ self.weight.t()[:2]

    graph = trace_module(Views(), lambda b: (torch.randn(b, 4),)).graph
    aliases = {op.name: op.alias for op in graph.ops}
    assert aliases == {
        "relu": None,
        "view": "relu",
        "transpose": "relu",
        "chunk": None,
        "getitem": "relu",
        "getitem_1": "relu",
        "mul": None,
        "flatten": "mul",
        "t": "weight",
        "slice_1": "weight",
        "matmul": None,
    }


class Attention(nn.Module):
    """Norm, attention, dropout and a feed-forward part: most that autograd saves."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.qkv(self.norm(x)).view(x.shape[0], -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(y.transpose(1, 2).flatten(-2))
        y = self.down(functional.gelu(self.up(x)))
        return (x + y).log_softmax(-1).max(-1)[0].sum()


@pytest.mark.parametrize("batch_size", [2, 3, 7])
def test_saved_bytes_equal_those_of_a_real_run(batch_size: int) -> None:
    """By unique storage, at batch sizes that were observed and at one that was not."""
    torch.manual_seed(0)
    model = Attention()
    graph = trace_module(model, lambda b: (torch.randn(b, 6, 8),)).graph
    owners = {name for op in graph.ops for name in op.saved}
    predicted = sum(_spec_of(graph, name).num_bytes(batch_size) for name in owners)
    predicted += sum(op.saved_bytes[0] + op.saved_bytes[1] * batch_size for op in graph.ops)

    saved: dict[int, int] = {}
    kept = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        saved[storage_of(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        model(torch.randn(batch_size, 6, 8))
    for parameter in model.parameters():
        saved.pop(storage_of(parameter), None)
    assert predicted == sum(saved.values())


def _spec_of(graph: OpGraph, value: str) -> TensorSpec:
    spec = graph.spec_of(value)
    assert spec is not None
    return spec


def test_the_loss_is_found_in_the_output() -> None:
    """A model that returns a dict with `loss`, or a scalar alone, has a loss."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> dict[str, Any]:
            y = self.a(x)
            return {"y": y, "loss": y.sum(), "nothing": None, "again": y, "number": 3}

    model = Named()
    captured = trace_module(model, lambda b: (torch.randn(b, 4),))
    assert captured.graph.loss == "sum_1"
    assert captured.graph.outputs == ("linear", "sum_1", "linear")
    found = captured.run((torch.ones(5, 4),))
    assert list(found) == ["y", "loss", "nothing", "again", "number"]
    assert found["nothing"] is None and found["number"] == 3
    assert torch.equal(found["y"], model(torch.ones(5, 4))["y"])


def test_without_a_loss_every_output_is_differentiated() -> None:
    """All ops up to any output need a backward."""
    graph = trace_module(nn.Linear(4, 4), lambda b: (torch.randn(b, 4),)).graph
    assert graph.loss is None
    assert [op.needs_backward for op in graph.ops] == [True]


class Nested(nn.Module):
    """Takes lists, dicts, a flag and keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, pair: list[Tensor], extra: dict[str, Tensor], *, twice: bool) -> Any:
        y = self.a(pair[0] + pair[1]) * extra["scale"]
        return y * 2 if twice else y


def test_inputs_may_be_nested_and_hold_flags() -> None:
    """Each tensor has a path; what is not a tensor is part of the graph."""
    batch = {
        "pair": [torch.randn(3, 4), torch.randn(3, 4)],
        "extra": {"scale": torch.randn(3, 4)},
        "twice": True,
    }
    captured = trace_module(Nested(), batch)
    assert [each.path for each in captured.graph.inputs] == ["pair.0", "pair.1", "extra.scale"]
    assert all(str(each.spec) == "float32[b, 4]" for each in captured.graph.inputs)
    assert captured.graph.batch == "dynamic"
    with pytest.raises(CaptureError, match="another structure"):
        captured.flatten_batch({"pair": []})


def test_batch_dimensions_are_learned_from_a_function() -> None:
    """Any dimension may grow, by any factor; what does not grow is shared by the batch."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor, y: Tensor, shared: Tensor) -> Any:
            return (self.a(x).T @ y).sum() + (shared * self.a.bias).sum()

    def make(batch_size: int) -> tuple[Tensor, ...]:
        return torch.randn(3 * batch_size + 1, 4), torch.randn(3 * batch_size + 1, 2), torch.ones(4)

    graph = trace_module(Mixed(), make).graph
    assert [str(each.spec) for each in graph.inputs] == [
        "float32[3*b+1, 4]",
        "float32[3*b+1, 2]",
        "float32[4]",
    ]


def test_inputs_without_a_batch_dimension_say_so() -> None:
    """A function that ignores the batch size, or plain tensors of different lengths."""
    for given in (lambda b: (torch.randn(7, 4),), (torch.randn(7, 4), torch.randn(3, 4))):

        class Sum(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a = nn.Linear(4, 4)

            def forward(self, *tensors: Tensor) -> Any:
                return sum(self.a(tensor).sum() for tensor in tensors)

        graph = trace_module(Sum(), given).graph
        assert (graph.batch, graph.batch_size) == ("none", 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda b: (torch.randn(b * b, 4),), "not a multiple of the batch size"),
        (lambda b: (torch.randn(b, 4),) * b, "another structure"),
        (lambda b: "text", "not a tuple, dict or tensor"),
        ((), "hold no tensor"),
    ],
)
def test_wrong_inputs_are_refused(given: Any, message: str) -> None:
    """With a remedy that shows right ones."""
    with pytest.raises(CaptureError, match=message) as caught:
        trace_module(nn.Linear(4, 4), given)
    assert caught.value.remedy


def test_graphs_survive_a_round_trip_through_json(captured: Captured) -> None:
    """The same graph, the same fingerprint."""
    again = decode_noun(encode_noun(captured.graph), OpGraph, name="graph.json")
    assert again == captured.graph
    assert again.fingerprint == captured.graph.fingerprint


def test_the_fingerprint_does_not_depend_on_how_the_module_was_made(captured: Captured) -> None:
    """Real, on meta, in another process, with another example size: the same graph."""
    with torch.device("meta"):
        bare = Language()
    assert trace_module(bare, inputs, loss=loss).graph.fingerprint == captured.graph.fingerprint
    other = trace_module(Language(), inputs, loss=loss, batch_size=4)
    assert other.graph.fingerprint == captured.graph.fingerprint


def test_capture_is_the_same_in_every_process() -> None:
    """Two processes with different hash seeds give the same bytes."""
    code = (
        "import sys; sys.path.insert(0, 'examples');"
        "from graphplan.frontend import load_model_file, trace_model_file;"
        "from graphplan.files import encode_noun;"
        "file = load_model_file('examples/gpt.py',"
        " settings=dict(layers=2, hidden=16, heads=2, vocabulary=50, context=8));"
        "print(encode_noun(trace_model_file(file).graph).decode())"
    )
    texts = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1]
    assert len(json.loads(texts[0])["ops"]) > 40


def test_a_captured_module_trains_like_the_original(captured: Captured) -> None:
    """The captured module shares the user's parameters, at any batch size."""
    torch.manual_seed(0)
    model = Language()
    own = trace_module(model, inputs, loss=loss)
    batch = inputs(6)
    eager = run_step(model, lambda: loss(model(batch["tokens"]), batch))
    assert_same_step(run_step(model, lambda: own.run(batch)), eager)
    assert own.weights()["tokens.weight"] is model.tokens.weight
