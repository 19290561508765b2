"""Models whose modules have odd names are captured, and their graphs can be read again."""

from __future__ import annotations

import torch
from torch import nn

from graphplan.files import decode_noun, encode_noun
from graphplan.frontend import trace_module
from graphplan.nouns.opgraph import OpGraph
from tests.torch.comparing import run_cut, run_step
from tests.torch.cuts import chain_cut

ODD = ("left arm", "x/y", "größe", "a" * 300)
HIDDEN = ("esc\x1b[2J", "turn\u202e")


class Heads(nn.Module):
    """One layer for each odd name."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(4, 4) for name in names})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for head in self.heads.values():
            x = torch.tanh(head(x))
        return x.square().mean()


def test_odd_names_are_captured_and_trained() -> None:
    """The graph survives its file, and stages have the gradients of the module."""
    module = Heads(ODD)
    captured = trace_module(module, lambda b: (torch.randn(b, 4),))
    text = encode_noun(captured.graph)
    assert decode_noun(text, OpGraph, name="graph.json") == captured.graph
    batch = (torch.randn(5, 4),)
    wanted = run_step(module, lambda: module(*batch))
    found = run_cut(captured, module, chain_cut(captured.graph, 3), batch)
    assert found.gradients.keys() == wanted.gradients.keys()
    for name, gradient in wanted.gradients.items():
        assert torch.equal(found.gradients[name], gradient)


def test_names_that_would_steer_a_terminal_are_written_out() -> None:
    """They are captured; neither the graph nor what is printed of it holds the characters."""
    graph = trace_module(Heads(HIDDEN), lambda b: (torch.randn(b, 4),)).graph
    text = encode_noun(graph)
    assert b"\\u001b" not in text and "\u202e".encode() not in text
    assert decode_noun(text, OpGraph, name="graph.json") == graph
