"""Repeats: a sub-module that occurs again and again is traced once.

Most of a model is the same block many times over, and most of the time of a trace goes into torch's
work on each op, not into the Python that calls it. The first block of a kind is traced and recorded
(`recorded`). Of each further one only the Python is run; if it asks torch for the same, it leaves
a single op `graphplan::repeat` in the trace, which `unfold` replaces by a copy of the first block's
nodes with the other weights.

    first block                        graphplan::first  (what goes in, comes out, its weights)
    second block   same calls?  yes -> graphplan::repeat (what goes in, its weights) -> results
                                no  -> the trace starts again, and these two are kept apart

So nothing is guessed from the looks of a module: its class, shapes and settings only say where a
comparison may be worth it. A model in which blocks differ costs the start of another trace, at most
`MOST_RETRIES` times for blocks of one kind, which are then traced in full.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, set_proxy_slot
from torch.utils import _pytree as pytree

from graphplan.frontend.leaves import replaced_forward
from graphplan.frontend.nodes import fake_value, is_scalar
from graphplan.frontend.recorded import (
    Follower,
    NotRepeated,
    Phantom,
    Record,
    Recorder,
    Ref,
    Weights,
    describe_tensor,
    is_apart,
    is_same_constant,
    share_pattern,
    tensor_leaves,
)
from graphplan.frontend.runs import (
    ModuleRun,
    list_modes,
    mark_nodes,
    nodes_after,
    read_modes,
)

MOST_RETRIES = 2
"""Traces that are begun anew for blocks of one kind."""

_LIBRARY = torch.library.Library("graphplan", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "first(str key, str path, Tensor[] values, Tensor[] weights, Tensor[] results) -> ()"
)
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "repeat(str key, str path, int[] wanted, Tensor[] values, Tensor[] weights) -> Tensor[]"
)
FIRST, REPEAT = torch.ops.graphplan.first.default, torch.ops.graphplan.repeat.default
fx.node.has_side_effect(FIRST)


@dataclass
class First:
    """A sub-module that was traced in full, for others to follow."""

    key: str
    path: str
    """Of the sub-module, as the tracer calls it."""
    settings: tuple[Any, ...]
    record: Record
    given: tuple[torch.Tensor, ...]
    results: tuple[Ref, ...]
    """The values that it made and returned, and what it was given or read and has written."""


_firsts: dict[str, First] = {}
"""Those of the trace that is running, by key."""


@torch.library.register_fake("graphplan::first", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _fake_first(key: str, path: str, values: Any, weights: Any, results: Any) -> None:
    return None


@torch.library.register_fake("graphplan::repeat", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _fake_repeat(
    key: str, path: str, wanted: list[int], values: Any, weights: Any
) -> list[torch.Tensor]:
    first = _firsts[key]
    made = [first.record.tensor(first.results[place]) for place in wanted]
    return [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype) for each in made]


@dataclass
class Apart:
    """What earlier traces of the same model taught: who does not do the same."""

    pairs: set[tuple[str, str]] = field(default_factory=set)
    """Paths of two sub-modules."""
    kinds: Counter[Any] = field(default_factory=Counter)
    """How often a comparison failed, by kind."""
    has_followed: bool = False
    """Whether the trace that is running has taken a sub-module for another's repeat."""
    is_off: bool = False
    """Whether something else went wrong: then nothing is followed."""


@contextlib.contextmanager
def traced_once(root: nn.Module, apart: Apart) -> Iterator[None]:
    """While it lasts, repeated sub-modules of a module are traced once; raises NotRepeated."""
    if apart.is_off:
        yield
        return
    _firsts.clear()
    repeats = _Repeats(root, apart)
    try:
        with contextlib.ExitStack() as stack:
            for module in repeats.list_candidates():
                stack.enter_context(replaced_forward(module, repeats.wrap(module)))
            yield
        if repeats.failure is not None:
            raise repeats.failure
    except NotRepeated:
        if repeats.failed is None:
            apart.is_off = True
        else:
            kind, pair = repeats.failed
            apart.kinds[kind] += 1
            apart.pairs.add(pair)
        raise
    finally:
        _firsts.clear()


class _Repeats:
    """The state of one trace."""

    def __init__(self, root: nn.Module, apart: Apart) -> None:
        self.root = root
        self.apart = apart
        self.failure: NotRepeated | None = None
        self.failed: tuple[Any, tuple[str, str]] | None = None
        """The kind and the paths of the comparison that failed."""
        self._kinds: dict[nn.Module, Any] = {}
        self._weights: Weights = {}
        self._firsts: dict[Any, list[First]] = {}
        self._recorders: list[Recorder] = []
        self._is_following = False

    def list_candidates(self) -> list[nn.Module]:
        """Sub-modules with parts of their own of which there is more than one of a kind."""
        counts = Counter(self._kind_of(module) for module in self.root.modules())
        return [
            module
            for module in self.root.modules()
            if next(module.children(), None) is not None
            and type(module).forward is not nn.Module.forward
            and module is not self.root
            and counts[self._kind_of(module)] > 1
            and self.apart.kinds[self._kind_of(module)] <= MOST_RETRIES
        ]

    def _kind_of(self, module: nn.Module) -> Any:
        """Class, parts by name, and shapes of weights: what modules that do the same have alike."""
        if module not in self._kinds:
            weights = [
                (name, tuple(each.shape), each.dtype, each.requires_grad)
                for held in (module._parameters, module._buffers)
                for name, each in held.items()
                if each is not None
            ]
            parts = [(name, self._kind_of(part)) for name, part in module.named_children()]
            text = repr((type(module), id(type(module)), module.training, weights, parts))
            self._kinds[module] = hash(text)
        return self._kinds[module]

    def wrap(self, module: nn.Module) -> Callable[..., Any]:
        """The forward of a candidate while a trace runs."""
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            mode = get_proxy_mode()
            if self._is_following or mode is None:
                return original(*args, **kwargs)
            call = ModuleRun(module, original, args, kwargs, mode.tracer)
            return self._run(call)

        return forward

    def _run(self, call: ModuleRun) -> Any:
        if not self._weights:
            held = (*self.root.parameters(), *self.root.buffers())
            self._weights = {id(each): each for each in held}
        given = tensor_leaves((call.args, call.kwargs))
        inputs = [each for each in given if id(each) not in self._weights]
        kind = self._kind_of(call.module)
        place = (kind, *self._describe_call(call, given))
        known = [
            first
            for first in self._firsts.get(place, ())
            if (call.path, first.path) not in self.apart.pairs
        ]
        settings = _settings_of(call.module)
        if not known:
            return self._record(call, inputs, place, settings)
        first = min(reversed(known), key=lambda each: _count_unlike(each.settings, settings))
        try:
            return self._follow(call, inputs, first)
        except Exception as error:
            self.failed = (kind, (call.path, first.path))
            raise NotRepeated(str(error)) from error
        except NotRepeated as error:
            self.failure, self.failed = error, (kind, (call.path, first.path))
            raise

    def _describe_call(self, call: ModuleRun, given: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Everything that a forward may read of its tensors and of the modes that it runs under."""
        leaves, tree = pytree.tree_flatten((call.args, call.kwargs))
        tensors = [describe_tensor(each) for each in given]
        kept = [tuple(sorted(set(vars(each)))) for each in given]
        is_weight = [id(each) in self._weights for each in given]
        others = [type(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        modes = [id(mode) for mode in list_modes()]
        recorders = {id(each) for each in self._recorders}
        return (
            str(tree),
            repr((tensors, kept, is_weight, others, share_pattern(given))),
            tuple(mode for mode in modes if mode not in recorders),
            read_modes(),
        )

    def _record(
        self, call: ModuleRun, inputs: list[torch.Tensor], place: Any, settings: Any
    ) -> Any:
        before = next(iter(reversed(call.tracer.graph.nodes)))
        kinds = list(map(describe_tensor, inputs))
        recorder = Recorder(inputs, call.scene(self._weights))
        self._recorders.append(recorder)
        try:
            with recorder:
                output = call.original(*call.args, **call.kwargs)
        finally:
            self._recorders.pop()
        key = str(len(_firsts))
        is_plain = recorder.record.flaw is None and kinds == list(map(describe_tensor, inputs))
        if is_plain and mark_nodes(before, key):
            self._keep(call, recorder, inputs, output, key, place, settings)
        return output

    def _keep(
        self,
        call: ModuleRun,
        recorder: Recorder,
        inputs: list[torch.Tensor],
        output: Any,
        key: str,
        place: Any,
        settings: Any,
    ) -> None:
        record = recorder.record
        refs = dict.fromkeys(recorder.refer(each) for each in tensor_leaves(output))
        made = [ref for ref in refs if ref.kind == "value" and ref.place >= len(inputs)]
        results = [record.tensor(ref) for ref in made]
        written = recorder.list_written()
        # Memory that a result shares with anything else cannot be told by a single op.
        if not is_apart(results, [*inputs, *record.weights, *record.outers]) or any(
            ref.kind == "outer" for ref in written
        ):
            return
        results += [record.tensor(ref) for ref in written]
        first = First(key, call.path, settings, record, tuple(inputs), (*made, *written))
        _firsts[key] = first
        self._firsts.setdefault(place, []).append(first)
        with self._paused():
            torch.ops.graphplan.first(key, call.path, list(inputs), record.weights, results)
        mark = next(iter(reversed(call.tracer.graph.nodes)))
        before = [[*map(record.nodes.get, refs)] for refs in record.list_given(len(inputs))]
        mark.args = (*mark.args[:2], *before, mark.args[4])

    def _follow(self, call: ModuleRun, inputs: list[torch.Tensor], first: First) -> Any:
        record = first.record
        follower = Follower(record, inputs, call.scene(self._weights))
        places = {id(each): index for index, each in reversed(list(enumerate(inputs)))}
        args, kwargs = pytree.tree_map_only(
            torch.Tensor,
            lambda each: follower.phantom(places[id(each)]) if id(each) in places else each,
            (call.args, call.kwargs),
        )
        before = next(iter(reversed(call.tracer.graph.nodes)))
        self._is_following = True
        try:
            with follower:
                output = call.original(*args, **kwargs)
        finally:
            self._is_following = False
        if follower.position != len(record.calls):
            raise NotRepeated("fewer calls")
        if not all(is_scalar(fake_value(node)) for node in nodes_after(before)):
            raise NotRepeated("it left something in the trace")
        return self._leave(call, first, follower, inputs, output)

    def _leave(
        self,
        call: ModuleRun,
        first: First,
        follower: Follower,
        inputs: list[torch.Tensor],
        output: Any,
    ) -> Any:
        """Leave one op, and put its results in the place of what stands for them."""
        phantoms = [leaf for leaf in tensor_leaves(output) if isinstance(leaf, Phantom)]
        wanted = [each.number for each in phantoms if each.number >= len(inputs)]
        wanted = list(dict.fromkeys(wanted))
        refs = [Ref("value", number) for number in wanted]
        if not set(refs) <= set(first.results) or any(p.owner is not follower for p in phantoms):
            raise NotRepeated("it returns something else")
        bound = [each for each in follower.bound if each is not None]
        outers = first.record.outers
        before = share_pattern([*first.given, *first.record.weights, *outers])
        if share_pattern([*inputs, *bound, *outers]) != before:
            raise NotRepeated("other tensors share memory")
        self.apart.has_followed = True
        written = [ref for ref in first.results if ref in first.record.nodes]
        places = [first.results.index(ref) for ref in (*refs, *written)]
        with self._paused():
            made = torch.ops.graphplan.repeat(first.key, call.path, places, inputs, bound)
        real = dict(enumerate(inputs)) | dict(zip(wanted, made, strict=False))
        for number in wanted:
            if describe_tensor(real[number]) != describe_tensor(first.record.values[number]):
                raise NotRepeated("a result of another kind")
        for recorder in self._recorders:
            recorder.absorb(follower, real)
        for ref, state in zip(written, made[len(wanted) :], strict=True):
            tensor = inputs[ref.place] if ref.kind == "value" else bound[ref.place]
            set_proxy_slot(tensor, call.tracer, get_proxy_slot(state, call.tracer))
        return pytree.tree_map_only(Phantom, lambda leaf: real[leaf.number], output)

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        """What is called meanwhile is not the model's."""
        for recorder in self._recorders:
            recorder.is_paused = True
        try:
            yield
        finally:
            for recorder in self._recorders:
                recorder.is_paused = False


def _settings_of(module: nn.Module) -> tuple[Any, ...]:
    """The numbers and words among the attributes of a module and its parts."""
    plain = (int, float, bool, str, type(None))
    return tuple(
        value if isinstance(value, plain) else None
        for part in module.modules()
        for value in part.__dict__.values()
    )


def _count_unlike(one: Sequence[Any], other: Sequence[Any]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(not is_same_constant(*pair) for pair in pairs) + abs(len(one) - len(other))
