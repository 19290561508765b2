"""Mixing: ops whose result for one sample depends on other samples of the batch.

Replicas and micro-batches split a batch. A loss that is a mean of losses of samples is the mean of
the parts' losses, whatever the split; batch norm, contrastive logits or a softmax over the batch
are not. Every value of a dynamic graph is followed:

    rows      each entry along a batch dimension belongs to one sample
    index     the numbers of the samples: arange(b)
    total     no batch dimension is left: a sum over samples (degree 1), or a mean (degree 0)
    ragged    rows, of which values have chosen some
    None      the same for all samples: weights, constants

An op mixes when it makes a second batch dimension, works along one (a softmax, an order, a place),
takes what is no sum of samples over one, or feeds a total back: into rows, or into anything that
is not linear. What is read of an op that mixes counts as rows, or as the same for all, so that one
cause is told once. Assumed where nothing tells otherwise: ops treat batch dimensions as they treat
any leading one, and indices computed from arange(b) stay with their sample in a flattened tensor.
`ignore_index` of a cross entropy counts when it is an index; -100 is there in every model.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import fx
from torch._ops import OpOverload

from graphplan.frontend.scalars import is_scalar_node
from graphplan.frontend.targets import plain_op
from graphplan.nouns.opgraph import Mixing, MixingKind, Op
from graphplan.nouns.tensor import TensorSpec, parse_dim


@dataclass(frozen=True)
class Flow:
    """What is known of a value."""

    form: Literal["rows", "index", "total", "ragged"]
    degree: int = 0
    """Of a total: 1 grows with the number of samples, 0 does not."""
    is_computed: bool = False
    """Of an index: whether it is not arange(b) itself."""


ROWS, RAGGED = Flow("rows"), Flow("ragged")

_SUMS = frozenset(
    [
        "sum",
        "matmul",
        "mm",
        "bmm",
        "addmm",
        "dot",
        "vdot",
        "einsum",
        "tensordot",
        "inner",
        "mv",
        "linear",
    ]
)
_VIEWS = frozenset(
    [
        "to",
        "_to_copy",
        "type_as",
        "clone",
        "contiguous",
        "getitem",
        "view",
        "reshape",
        "flatten",
        "squeeze",
        "unsqueeze",
        "permute",
        "transpose",
        "t",
        "expand",
        "expand_as",
        "slice",
        "select",
        "detach",
        "alias",
        "float",
    ]
)
_LINEAR = _VIEWS | frozenset(
    [
        "add",
        "sub",
        "rsub",
        "neg",
        "mul",
        "div",
        "sum",
        "mean",
        "stack",
        "cat",
        "clamp",
        "clamp_min",
        "split",
        "unbind",
    ]
)
_ORDERED = frozenset(
    [
        "cumsum",
        "cumprod",
        "logcumsumexp",
        "cummax",
        "cummin",
        "sort",
        "topk",
        "argsort",
        "roll",
        "flip",
    ]
)
_ALONG = _ORDERED | frozenset(
    ["softmax", "log_softmax", "_softmax", "_log_softmax", "glu", "kthvalue"]
)
_PLACES = frozenset(["select", "slice", "unbind", "narrow"])
_RNNS = frozenset(["lstm", "gru", "rnn_tanh", "rnn_relu"])
_GATHERS = frozenset(["index_select", "gather", "take_along_dim"])
_SCATTERS = frozenset(
    ["scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill"]
)
_CHOOSING = frozenset(["masked_select", "nonzero", "index"])
_SPATIAL = ("conv", "avg_pool", "max_pool", "adaptive_", "upsample_", "_upsample", "group_norm")


def find_mixing(
    graph: fx.Graph,
    ops: Mapping[str, Op],
    inputs: Mapping[str, TensorSpec],
    *,
    loss: fx.Node | None,
) -> tuple[Mixing, ...]:
    """The ops of a normalised graph that mix samples, in its order."""
    walk = _Walk(ops)
    for node in graph.nodes:
        if node.op == "placeholder":
            walk.meet_input(node, inputs[node.name])
        elif node.name in ops:
            walk.meet_op(node)
    end = walk.flows.get(loss) if loss is not None else None
    if loss is not None and end is not None and end.form == "total" and end.degree:
        walk.found.setdefault(loss.name, "sum")
    return tuple(Mixing(op=op, kind=walk.found[op]) for op in ops if op in walk.found)


class _Walk:
    """Values in the order of the graph."""

    def __init__(self, ops: Mapping[str, Op]) -> None:
        self.ops = ops
        self.flows: dict[fx.Node, Flow] = {}
        """Of values that depend on samples."""
        self.specs: dict[fx.Node, TensorSpec | None] = {}
        self.found: dict[str, MixingKind] = {}

    def meet_input(self, node: fx.Node, spec: TensorSpec) -> None:
        self.specs[node] = spec
        if spec.has_batch:
            self.flows[node] = ROWS

    def meet_op(self, node: fx.Node) -> None:
        op = self.ops[node.name]
        self.specs[node] = op.output
        flow = self._follow(node, op.kind.rstrip("_"))
        if flow is not None:
            self.flows[node] = flow

    def _mark(self, node: fx.Node, kind: MixingKind) -> Flow | None:
        """What mixes counts as rows, or as the same for all, from here on."""
        self.found.setdefault(node.name, kind)
        return ROWS if self._batch_dims(node) or self.specs[node] is None else None

    def _batch_dims(self, node: Any) -> list[int]:
        spec = self.specs.get(node) if isinstance(node, fx.Node) else None
        return [i for i, dim in enumerate(spec.shape) if isinstance(dim, str)] if spec else []

    def _follow(self, node: fx.Node, kind: str) -> Flow | None:
        flows = [self.flows[each] for each in node.all_input_nodes if each in self.flows]
        forms = {flow.form for flow in flows}
        if not flows:
            is_numbered = kind in ("arange", "randperm") and self._batch_dims(node)
            return Flow("index", is_computed=kind == "randperm") if is_numbered else None
        if node.target is operator.getitem:
            return ROWS if self._batch_dims(node) else flows[0] if "total" in forms else None
        if forms == {"total"}:
            return self._follow_totals(node, kind)
        if "total" in forms:
            return self._mark(node, "statistics")
        if forms == {"index"} and self._batch_dims(node):
            is_computed = kind not in _VIEWS or any(flow.is_computed for flow in flows)
            return Flow("index", is_computed=is_computed)
        mixes = self._judge(node, kind)
        if mixes is not None:
            return self._mark(node, mixes)
        return self._follow_rows(node, kind, is_ragged="ragged" in forms)

    # -- totals ----------------------------------------------------------------------------------

    def _follow_totals(self, node: fx.Node, kind: str) -> Flow | None:
        """Linear ops give totals again; a ratio of two is a mean over a count."""
        if kind not in _LINEAR:
            return self._mark(node, "statistics")
        flows = [self.flows.get(each) for each in node.all_input_nodes]
        totals = [flow for flow in flows if flow is not None]
        degree = max(flow.degree for flow in totals)
        scaled = any(is_scalar_node(each) for each in node.all_input_nodes)
        if kind == "mul":
            if len(totals) > 1 or len(node.all_input_nodes) < len(_tensors(node.args)):
                return self._mark(node, "statistics")
            degree += scaled
        elif kind == "div":
            below = node.args[1]
            if isinstance(below, fx.Node) and below in self.flows:
                self._mark(node, "count" if node.args[0] in self.flows else "statistics")
                return Flow("total")
            degree -= scaled
        return Flow("total", degree=degree)

    # -- rows ------------------------------------------------------------------------------------

    def _follow_rows(self, node: fx.Node, kind: str, *, is_ragged: bool) -> Flow | None:
        spec = self.specs[node]
        if spec is None:
            return RAGGED if is_ragged or kind in _CHOOSING else ROWS
        if self._batch_dims(node):
            return ROWS
        if kind.endswith("_loss") or kind.startswith(
            ("nll_loss", "binary_cross_entropy", "kl_div")
        ):
            is_sum = _argument(node, "reduction", 1) == 2
            weighs = _argument(node, "ignore_index", -1) >= 0 or (
                kind in ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")
                and _argument(node, "weight", None) is not None
            )
            # Labels of CTC follow one another in one row; its mean is over samples all the same.
            if not is_sum and (weighs or (is_ragged and kind != "ctc_loss")):
                self._mark(node, "count")
            return Flow("total", degree=int(is_sum))
        if kind == "mean":
            if is_ragged:
                self._mark(node, "count")
            return Flow("total")
        if kind in _SUMS:
            return Flow("total", degree=1)
        return self._mark(node, "statistics")

    def _judge(self, node: fx.Node, kind: str) -> MixingKind | None:
        """How an op on rows mixes them, None when it does not."""
        first: Any = node.args[0] if node.args else None
        batch = self._batch_dims(first)
        given = max(len(self._batch_dims(each)) for each in node.all_input_nodes)
        if len(self._batch_dims(node)) > max(given, 1):
            return "compare"
        if kind == "index":
            return self._judge_index(node)
        if kind in _GATHERS or kind in _SCATTERS:
            return self._judge_places(node, kind)
        if "batch_norm" in kind:
            flags = [_argument(node, name, None) for name in ("training", "train")]
            return "statistics" if True in flags else None
        if kind in ("layer_norm", "native_layer_norm"):
            count = len(_argument(node, "normalized_shape", ()))
            return "statistics" if any(dim >= self._rank(first) - count for dim in batch) else None
        if kind in _ALONG and batch and self._works_along(node, batch):
            return "order" if kind in _ORDERED else "compare"
        if kind in _PLACES and self._works_along(node, batch) and not self._is_share(node):
            return "order"
        if kind in _RNNS:
            place = 0 if _argument(node, "batch_first", False) else 1
            return "compare" if batch and self._rank(first) == 3 and batch != [place] else None
        if kind == "scaled_dot_product_attention":
            return "compare" if any(dim >= self._rank(first) - 2 for dim in batch) else None
        if kind.startswith(_SPATIAL):
            return "compare" if batch and batch[0] > 0 else None
        return None

    def _rank(self, node: Any) -> int:
        spec = self.specs.get(node)
        return len(spec.shape) if spec else 0

    def _works_along(self, node: fx.Node, batch: list[int]) -> bool:
        """Whether an op's `dim` is a batch dimension of its first argument."""
        dims = _argument(node, "dim", _argument(node, "dims", 0))
        dims = dims if isinstance(dims, (list, tuple)) else [dims]
        rank = self._rank(node.args[0])
        return bool(batch) and (not dims or any(dim % max(rank, 1) in batch for dim in dims))

    def _is_share(self, node: fx.Node) -> bool:
        """Whether a slice along samples takes one of several rows of each: what `cat` joined."""
        spec, given = self.specs[node], self.specs.get(node.args[0])  # type: ignore[arg-type]
        if spec is None or given is None or len(spec.shape) != len(given.shape):
            return spec is None
        pairs = zip(spec.shape, given.shape, strict=True)
        return all(
            parse_dim(own)[1] == 0 and parse_dim(own)[0] > 0
            for own, before in pairs
            if isinstance(before, str)
        )

    def _judge_index(self, node: fx.Node) -> MixingKind | None:
        """x[indices]: along samples only their own numbers, or a mask, keep them apart."""
        batch, indices = self._batch_dims(node.args[0]), node.args[1]
        assert isinstance(indices, (list, tuple))
        for dim, index in enumerate(indices):
            if dim in batch and isinstance(index, fx.Node) and self._picks(node, dim, index):
                return "order"
        return None

    def _judge_places(self, node: fx.Node, kind: str) -> MixingKind | None:
        first, dim = node.args[0], _argument(node, "dim", 0)
        index: Any = _argument(node, "index", None)
        batch = self._batch_dims(first)
        if not batch:  # Rows are written into, or taken from, what all share.
            return None if kind in _GATHERS or self._batch_dims(node) else "statistics"
        if dim is None or dim % max(self._rank(first), 1) not in batch:
            return None
        return "order" if self._picks(node, dim, index) else None

    def _picks(self, node: fx.Node, dim: int, index: Any) -> bool:
        """Whether an index along samples may take another sample than its own."""
        spec, flow = self.specs[node.args[0]], self.flows.get(index)  # type: ignore[index]
        assert spec is not None
        if flow is None:
            return True
        if self.specs[node] is None and flow.form == "rows":  # a mask
            return False
        is_flat = parse_dim(spec.shape[dim])[0] > 1
        return not is_flat and (flow.form != "index" or flow.is_computed)


def _tensors(args: Any) -> list[fx.Node]:
    return [each for each in args if isinstance(each, fx.Node)]


def _argument(node: fx.Node, name: str, default: Any) -> Any:
    """An argument of an op by its name in the schema; the default when it is not given."""
    target = plain_op(node.target)
    if name in node.kwargs:
        return node.kwargs[name]
    if not isinstance(target, OpOverload):
        return default
    names = [each.name for each in target._schema.arguments]
    if name not in names:
        return default
    place = names.index(name)
    if place < len(node.args):
        return node.args[place]
    own = target._schema.arguments[place]
    return own.default_value if own.has_default_value() else default
