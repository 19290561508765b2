"""Families of models that are not series-parallel, as recipes, pipelines and max-load problems.

    python -m tools.families FOLDER          writes every family as graphplan/maxload-workload files

Light tensors take a tenth of all work if every one of them crosses a border, heavy ones as long as
all work. Names are those of the models whose graphs they resemble; weights and times are drawn.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from graphplan.files import write_noun
from graphplan.partition.maxload.maxload import LoadOp, LoadTensor, MaxLoad
from tools.synthetic import Recipe
from tools.workloads.workload import MaxLoadOp, MaxLoadTensor, MaxLoadWorkload

TENSOR_SHARES = {"light": 0.1, "heavy": 1.0}
"""Seconds of all tensors over those of all ops."""


class _Drawn:
    """A recipe whose layers have drawn sizes."""

    def __init__(self, name: str, seed: int) -> None:
        self.recipe = Recipe(name)
        self.rng = random.Random(f"{name} {seed}")

    def add(self, name: str, inputs: list[int], *, scale: float = 1.0) -> int:
        """A layer of about 4 million weights, and of 1 billion FLOPs and 1 MB a sample."""
        flops = scale * 1e9 * self.rng.lognormvariate(0.0, 0.6)
        out = max(1, int(scale * 2.5e5 * self.rng.lognormvariate(0.0, 0.6)))
        weights = int(scale * 4e6 * self.rng.lognormvariate(0.0, 0.8))
        return self.recipe.add(
            name, sorted(set(inputs)), flops=flops, out=out, weights=weights, kept=out
        )


def describe_nasnet(*, cells: int = 9, seed: int = 0) -> Recipe:
    """Cells of five pairs of layers that read earlier ones and the two cells before."""
    drawn = _Drawn(f"nasnet-{cells}", seed)
    stem = drawn.add("stem", [])
    ends = [stem, drawn.add("stem1", [stem])]
    for c in range(cells):
        inside = list(ends[-2:])
        unread = set()
        for b in range(5):
            pair = [
                drawn.add(f"cell{c}.{b}.{side}", [drawn.rng.choice(inside)])
                for side in ("left", "right")
            ]
            inside.append(drawn.add(f"cell{c}.{b}.add", pair, scale=0.05))
            unread.add(inside[-1])
        ends.append(drawn.add(f"cell{c}.concat", sorted(unread), scale=0.05))
    drawn.add("head", [ends[-1]])
    return drawn.recipe


def describe_gnmt(*, layers: int = 8, steps: int = 16, seed: int = 0) -> Recipe:
    """A grid of recurrent cells: each reads the layer below and the step before."""
    drawn = _Drawn(f"gnmt-{layers}x{steps}", seed)
    below = [drawn.add(f"embed{t}", [], scale=0.1) for t in range(steps)]
    for layer in range(layers):
        row: list[int] = []
        for t in range(steps):
            row.append(drawn.add(f"cell{layer}.{t}", [below[t], *row[-1:]]))
        below = row
    drawn.add("head", below)
    return drawn.recipe


def describe_layered(*, width: int = 8, depth: int = 20, seed: int = 0) -> Recipe:
    """Random layers: every op reads one to three ops of the layer before, or of the one before."""
    drawn = _Drawn(f"layered-{width}x{depth}-{seed}", seed)
    rows = [[drawn.add(f"row0.{i}", []) for i in range(width)]]
    for r in range(1, depth):
        near = rows[-1] + (drawn.rng.sample(rows[-2], 2) if r > 1 else [])
        rows.append(
            [
                drawn.add(f"row{r}.{i}", drawn.rng.sample(near, drawn.rng.randint(1, 3)))
                for i in range(width)
            ]
        )
    drawn.add("head", rows[-1])
    return drawn.recipe


def describe_unet(*, levels: int = 6, repeats: int = 3, seed: int = 0) -> Recipe:
    """U-Net++: node (i, j) reads all earlier nodes of its level and one of the level below."""
    drawn = _Drawn(f"unet-{levels}x{repeats}", seed)
    grid: dict[tuple[int, int], int] = {}
    for total in range(levels):
        for j in range(total + 1):
            i = total - j
            inputs = [grid[i, k] for k in range(j)]
            inputs += [grid[i + 1, j - 1]] if j and (i + 1, j - 1) in grid else []
            inputs += [grid[i - 1, 0]] if not j and i else []
            last = drawn.add(f"node{i}.{j}.0", inputs)
            for r in range(1, repeats):
                last = drawn.add(f"node{i}.{j}.{r}", [last])
            grid[i, j] = last
    drawn.add("head", [grid[0, levels - 1]])
    return drawn.recipe


def describe_t5(*, layers: int = 12, seed: int = 0) -> Recipe:
    """Encoder and decoder; position biases and the encoder's end are read by every layer."""
    drawn = _Drawn(f"t5-{layers}", seed)
    ends: list[int] = []
    encoded: list[int] = []
    for side in ("encoder", "decoder"):
        last = drawn.add(f"{side}.embed", [], scale=0.3)
        bias = drawn.add(f"{side}.bias", [], scale=0.05)
        for layer in range(layers):
            name = f"{side}.{layer}"
            query, key, value = (drawn.add(f"{name}.{each}", [last], scale=0.3) for each in "qkv")
            scores = drawn.add(f"{name}.scores", [query, key, bias], scale=0.3)
            mixed = drawn.add(f"{name}.mixed", [scores, value], scale=0.3)
            last = drawn.add(f"{name}.out", [mixed, last], scale=0.3)
            if encoded:
                cross = drawn.add(f"{name}.cross", [last, *encoded], scale=0.6)
                last = drawn.add(f"{name}.joined", [cross, last], scale=0.1)
            feed = drawn.add(f"{name}.feed", [last])
            last = drawn.add(f"{name}.add", [feed, last], scale=0.05)
        encoded = [last]
        ends.append(last)
    drawn.add("head", ends[-1:])
    return drawn.recipe


RECIPES: dict[str, Callable[[], Recipe]] = {
    "nasnet-6": lambda: describe_nasnet(cells=6),
    "nasnet-12": lambda: describe_nasnet(cells=12),
    "gnmt-4x20": lambda: describe_gnmt(layers=4, steps=20),
    "gnmt-8x16": lambda: describe_gnmt(layers=8, steps=16),
    "layered-6x16": lambda: describe_layered(width=6, depth=16),
    "layered-8x20": lambda: describe_layered(width=8, depth=20, seed=1),
    "layered-12x24": lambda: describe_layered(width=12, depth=24, seed=2),
    "unet-7x3": lambda: describe_unet(levels=7, repeats=3),
    "t5-12": lambda: describe_t5(layers=12),
}


def pose_load(recipe: Recipe, num_parts: int, *, tensor_share: float) -> MaxLoad:
    """A recipe as a max-load problem: seconds in proportion to FLOPs and to elements."""
    layers = recipe.layers
    readers: dict[int, list[int]] = {}
    for i, layer in enumerate(layers):
        for src in layer.inputs:
            readers.setdefault(src, []).append(i)
    work = sum(layer.flops for layer in layers)
    moved = sum(layers[owner].out_elements for owner in readers)
    return MaxLoad(
        name=recipe.name,
        ops=tuple(LoadOp(name=layer.name, seconds=layer.flops / work) for layer in layers),
        edges=tuple(sorted({(src, i) for i, layer in enumerate(layers) for src in layer.inputs})),
        tensors=tuple(
            LoadTensor(
                owner=owner,
                readers=tuple(found),
                seconds=tensor_share * layers[owner].out_elements / moved,
            )
            for owner, found in sorted(readers.items())
        ),
        num_parts=num_parts,
    )


def list_workloads() -> Iterator[tuple[str, MaxLoadWorkload]]:
    """Every family with light and with heavy tensors, as files."""
    for family, describe in RECIPES.items():
        for kind, share in TENSOR_SHARES.items():
            posed = pose_load(describe(), 1, tensor_share=share)
            names = [op.name for op in posed.ops]
            yield (
                f"maxload-{family}-{kind}",
                MaxLoadWorkload(
                    name=f"{family}-{kind}",
                    ops=tuple(MaxLoadOp(name=op.name, seconds=op.seconds) for op in posed.ops),
                    precedence=tuple((names[src], names[dst]) for src, dst in posed.edges),
                    tensors=tuple(
                        MaxLoadTensor(
                            owner=names[tensor.owner],
                            readers=tuple(names[reader] for reader in tensor.readers),
                            seconds=tensor.seconds,
                        )
                        for tensor in posed.tensors
                    ),
                ),
            )


def main() -> int:
    """Write all files into the folder of the first argument."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tools.families FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, workload in list_workloads():
        write_noun(workload, folder / f"{name}.json")
        print(name, len(workload.ops), "ops")
    return 0


if __name__ == "__main__":
    sys.exit(main())
