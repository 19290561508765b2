"""How an update is divided among replicas: found by trial, for any optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from graphplan.errors import InvalidOption
from graphplan_runtime.updates.buckets import make_buckets, share_by_slices, share_by_weights
from graphplan_runtime.updates.sharing import find_sharing, give_pieces


class Lars(torch.optim.SGD):
    """Steps in proportion to the norm of each weight."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Scale the gradients, then descend."""
        for each in self.param_groups[0]["params"]:
            each.grad *= each.norm() / each.grad.norm()
        super().step()


class Together(torch.optim.SGD):
    """Clips by the norm of all its gradients."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Clip, then descend."""
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.1)
        super().step()


BY_SLICES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p),
    "nadam": lambda p: torch.optim.NAdam(p),
}
BY_WEIGHTS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adafactor": lambda p: torch.optim.Adafactor(p),
    "muon": lambda p: torch.optim.Muon([each for each in p if each.dim() == 2]),
    "lars": lambda p: Lars(p, lr=0.1),
}


def make_weights() -> list[nn.Parameter]:
    """Of every number of dimensions."""
    shapes: list[tuple[int, ...]] = [(), (5,), (4, 6), (2, 3, 2, 2)]
    return [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in shapes]


@pytest.mark.parametrize("name", [*BY_SLICES, *BY_WEIGHTS])
def test_sharing_is_found(name: str) -> None:
    """Without a list of names; and the generators of the user are left alone."""
    state = torch.get_rng_state()
    wanted = "slices" if name in BY_SLICES else "weights"
    weights = make_weights()
    torch.set_rng_state(state)
    assert find_sharing((BY_SLICES | BY_WEIGHTS)[name](weights)) == wanted
    assert torch.equal(torch.get_rng_state(), state)


def test_an_update_that_mixes_weights_is_refused() -> None:
    """With what would work."""
    with pytest.raises(InvalidOption, match="Together") as caught:
        find_sharing(Together(make_weights(), lr=0.1))
    assert "--zero 0" in (caught.value.remedy or "")


@pytest.mark.parametrize("name", BY_SLICES)
def test_pieces_are_updated_as_whole_weights(name: str) -> None:
    """In the groups that were made for whole weights, with the states that are there already."""
    torch.manual_seed(0)
    whole, apart = make_weights(), []
    gradients = [torch.randn_like(each) for each in whole]
    buckets = share_by_slices(make_buckets(whole, 100), 3)
    for replica in range(3):
        optimizer = BY_SLICES[name](whole)
        pieces = [
            (piece, nn.Parameter(piece.take_from(piece.weight.detach()).clone()))
            for bucket in buckets
            for piece in bucket.list_pieces(replica)
        ]
        give_pieces(optimizer, pieces)
        apart += pieces
        for piece, parameter in pieces:
            place = next(i for i, each in enumerate(whole) if each is piece.weight)
            parameter.grad = piece.take_from(gradients[place]).clone()
        optimizer.step()
    optimizer = BY_SLICES[name](whole)
    for each, gradient in zip(whole, gradients, strict=True):
        each.grad = gradient
    optimizer.step()
    for piece, parameter in apart:
        torch.testing.assert_close(parameter, piece.take_from(piece.weight.detach()))


@given(
    st.lists(st.integers(1, 9), min_size=1),
    st.integers(1, 80),
    st.integers(1, 5),
    st.sampled_from([share_by_slices, share_by_weights]),
)
def test_every_element_has_one_owner(
    sizes: Iterable[int], bucket_bytes: int, num_replicas: int, share: Callable[..., Any]
) -> None:
    """Ranges follow one another, and pieces cover every weight once."""
    weights = [torch.zeros(size) for size in sizes]
    seen = {id(each): torch.zeros(each.numel()) for each in weights}
    for bucket in share(make_buckets(weights, bucket_bytes), num_replicas):
        assert bucket.bounds[0] == 0
        assert bucket.bounds[-1] == bucket.num_elements
        flat = torch.zeros(bucket.num_elements)
        for weight, part in bucket.cut(flat):
            part.copy_(torch.arange(1.0, weight.numel() + 1))
        for replica in range(num_replicas):
            for piece in bucket.list_pieces(replica):
                seen[id(piece.weight)][piece.begin : piece.end] += 1
                wanted = torch.arange(1.0 + piece.begin, 1 + piece.end)
                assert torch.equal(piece.find_in(flat).flatten(), wanted)
                own = bucket.own_range(replica)
                assert own.start <= piece.start
                assert piece.start + piece.end - piece.begin <= own.stop
    assert all(bool((each == 1).all()) for each in seen.values())
