"""Grow the trees that learn measured over estimated seconds, and judge them.

    python -m tools.fit_residual FOLDER

The trees of a class see all devices at once, half of the shapes (gpu_data.is_held_out); they are
kept where they beat the law on the other half, and written to `profiles/laws/residual.json.gz`.
Judged besides by leaving out one device, whose laws are then the class defaults.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy

from graphplan.cost.arrays import pack_array
from graphplan.cost.hardware import find_device_type
from graphplan.cost.laws.gemm import Floats
from graphplan.cost.laws.price import find_rate
from graphplan.cost.laws.residual import MOST, PARTS, ResidualFile, read_features
from graphplan.cost.trees import Tree, TreeGrower, Trees
from graphplan.nouns.cluster import DeviceType
from tools.fit_gpu import PROFILES, price_sample
from tools.gpu_data import Sample, Samples, is_held_out, read_samples

CLASSES = ("gemm", "attention", "gemm-float32", "bmm-float32", "conv-float32")
NUM_TREES, DEPTH = 300, 6
CLIP = 0.5
"""Errors in log seconds beyond this count as this much."""
MOST_ROWS = 24_000
LEAF_STEP = 5e-4
"""Leaves are rounded to multiples of this: the file is smaller, the answers are the same."""


class Lesson(msgspec.Struct, frozen=True):
    """Features and log of measured over estimated seconds of kernels."""

    values: Floats
    target: Floats


def make_lesson(sample: Sample, device: DeviceType, name: str, chips: Sequence[str]) -> Lesson:
    """What the trees see of a sample; `device` has the laws."""
    seconds = price_sample(sample, device, name, device.laws[name].figures)
    sizes = numpy.array([each[2:] for each in sample.kernels], float)
    dtype = sample.kernels[0][0]
    values = read_features(name, sizes, seconds, device, find_rate(device, str(dtype)), chips)
    return Lesson(values, numpy.log(sample.seconds / seconds))


def grow_trees(lessons: Sequence[Lesson], *, seed: int = 0) -> Trees:
    """Boosted trees on some lessons."""
    rng = numpy.random.default_rng(seed)
    values = numpy.concatenate([each.values for each in lessons]).astype(numpy.float32)
    target = numpy.concatenate([each.target for each in lessons])
    chosen = rng.permutation(len(target))[:MOST_ROWS]
    values, target = values[chosen], target[chosen]
    grower, grown = TreeGrower(values, DEPTH), []
    answer, ones = numpy.zeros(len(target)), numpy.ones(len(target))
    for _ in range(NUM_TREES):
        tree = grower.grow(numpy.clip(answer - target, -CLIP, CLIP), ones, rng)
        answer += collect([tree]).predict(values)
        grown.append(tree)
    return collect(grown)


def collect(grown: Sequence[Tree]) -> Trees:
    """Trees as they are stored."""
    leaves = numpy.round(numpy.array([tree[2] for tree in grown]) / LEAF_STEP) * LEAF_STEP
    return Trees(
        columns=numpy.array([tree[0] for tree in grown], dtype=numpy.int16),
        cuts=numpy.array([tree[1] for tree in grown], dtype=numpy.float32),
        leaves=leaves.astype(numpy.float32),
    )


def judge_trees(trees: Trees, lesson: Lesson) -> tuple[float, float]:
    """Mean errors of the law and of the law with its residual."""
    answer = numpy.clip(trees.predict(lesson.values), -MOST, MOST)
    law = numpy.abs(numpy.exp(-lesson.target) - 1).mean()
    return float(law), float(numpy.abs(numpy.exp(answer - lesson.target) - 1).mean())


def split_lessons(
    samples: Samples, devices: Mapping[str, DeviceType], name: str
) -> dict[str, tuple[Lesson, Lesson]]:
    """By device: what is learned from, and what judges."""
    found, chips = {}, list_chips(samples, devices, name)
    for (kind, profile), sample in samples.items():
        if kind == name and profile in devices:
            parts = [sample.select(lambda e: not is_held_out(e)), sample.select(is_held_out)]
            learned, judged = (make_lesson(part, devices[profile], name, chips) for part in parts)
            found[profile] = (learned, judged)
    return found


def list_chips(samples: Samples, devices: Mapping[str, DeviceType], name: str) -> tuple[str, ...]:
    """The chips that a class was measured on."""
    found = {devices[p].residual for kind, p in samples if kind == name and p in devices}
    return tuple(sorted(chip for chip in found if chip is not None))


def main() -> None:
    """Grow, judge, write."""
    samples = read_samples(Path(sys.argv[1]))
    devices = {profile: find_device_type(profile) for _, profile in samples}
    kept: dict[str, Trees] = {}
    for name in CLASSES:
        lessons = split_lessons(samples, devices, name)
        trees = grow_trees([learned for learned, _ in lessons.values()])
        scores = {profile: judge_trees(trees, judged) for profile, (_, judged) in lessons.items()}
        for profile, (law, corrected) in scores.items():
            print(f"{name:13s} {profile:15s} law {law:6.1%}  with trees {corrected:6.1%}")
        if all(corrected < law for law, corrected in scores.values()):
            kept[name] = trees
    arrays = {
        f"trees.{part} {name}": pack_array(getattr(trees, part))
        for name, trees in kept.items()
        for part in PARTS
    }
    source = "boosted trees on measured over estimated seconds, tools/fit_residual.py"
    chips = {name: list_chips(samples, devices, name) for name in kept}
    file = ResidualFile(source=source, chips=chips, arrays=arrays)
    content = gzip.compress(msgspec.json.encode(file), mtime=0)
    (PROFILES / "laws" / "residual.json.gz").write_bytes(content)
    print(f"{len(content) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
