"""The parts of the learned costs that need no torch: split, lessons, trees, novelty, report."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import numpy
import pytest

from graphplan.cost.boost import fit_boost
from graphplan.cost.calibrate import calibrate_tables
from graphplan.cost.features import FEATURES, extract_features
from graphplan.cost.hardware import find_device_type
from graphplan.cost.lessons import Lesson, flatten_lessons, read_lesson
from graphplan.cost.novelty import build_fence, find_novelties
from graphplan.cost.split import split_models
from graphplan.cost.stepratio import fit_ratio
from graphplan.cost.training import read_training
from graphplan.errors import InvalidFile, InvalidOption, UnknownName
from graphplan.files import MAX_FILE_BYTES, read_noun, write_noun
from graphplan.nouns.costset import CostSample, CostSet
from graphplan.nouns.learned import Array
from graphplan.nouns.plan import Certainty
from graphplan.report.summary import render_text
from tests.pure.costsets import CPU, RATIO, SIZES, make_net, make_set, obey_law
from tests.pure.plans import make_plan_example
from tests.pure.strategies import chain_edges


def read_all(found: CostSet) -> list[Lesson]:
    return [read_lesson(sample, CPU) for sample in found.samples]


# -- split -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_model_is_in_one_part_only(seed: int) -> None:
    """Two samples of one model are never on both sides, and no model is lost."""
    found = make_set(9)
    twins = [msgspec.structs.replace(each, model="net-1") for each in found.samples[2:4]]
    samples = [*found.samples[:2], *twins, *found.samples[4:]]
    split = split_models(samples, hold_out=["net-0"], seed=seed)
    parts = (split.training, split.validation, split.held_out)
    assert sum(map(len, parts)) == len(frozenset.union(*parts)) == len({s.model for s in samples})
    assert split.held_out == {"net-0"}
    assert split.validation


def test_validation_leaves_every_kind_to_training() -> None:
    """A model that alone has an op kind is not drawn for validation."""
    lone = make_net(64, 2, last="silu")
    found = [*make_set(8).samples, CostSample(model="lone", graph=lone, table=obey_law(lone))]
    assert all("lone" in split_models(found, seed=seed).training for seed in range(20))


def test_split_names_what_is_wrong() -> None:
    """A model that is not there, or too few of them, are errors with advice."""
    with pytest.raises(UnknownName, match="net-77"):
        split_models(make_set(6).samples, hold_out=["net-77"])
    with pytest.raises(InvalidOption, match="3 models or more"):
        split_models(make_set(2).samples)


# -- lessons and trees -----------------------------------------------------------------------------


def test_units_keep_the_measured_sum() -> None:
    """Groups are one unit with the sum of their rows, and nothing is counted twice."""
    sample = make_set(4).samples[3]
    rows = list(sample.table.rows)
    rows[:2] = [msgspec.structs.replace(row, group="l0..a0") for row in rows[:2]]
    table = msgspec.structs.replace(sample.table, rows=tuple(rows))
    lesson = read_lesson(msgspec.structs.replace(sample, table=table), CPU)
    assert lesson.num_units == len(rows) - 1
    assert lesson.unit_by_op[:3].tolist() == [0, 0, 1]
    total = sum(sum(r.forward_s) + sum(r.input_grad_s) + sum(r.weight_grad_s) for r in rows)
    assert lesson.measured_s.sum() == pytest.approx(total)


def test_trees_learn_a_law_that_the_roofline_cannot_tell() -> None:
    """Errors on models outside training are far below those of the calibrated roofline."""
    found = make_set(16)
    lessons = read_all(found)
    train, valid, held = lessons[::2], lessons[1:12:4], lessons[3:12:4]
    boost = fit_boost(flatten_lessons(train), flatten_lessons(valid), seed=0, num_trees=150)
    fitted = calibrate_tables(
        CPU,
        [
            (each.graph, msgspec.structs.replace(each.table, calibration=()))
            for each in found.samples[::2]
        ],
        source="half of the set",
    )
    errors: list[float] = []
    plain: list[float] = []
    for lesson, sample in zip(held, found.samples[3:12:4], strict=True):
        num_sizes, num_ops, width = lesson.features.values.shape
        answer = boost.predict(
            lesson.features.values.reshape(-1, width),
            lesson.features.kinds * num_sizes,
            lesson.features.families * num_sizes,
        ).reshape(num_sizes, num_ops, 3)
        reference = read_lesson(sample, CPU, roofline=fitted).features.reference_s
        for seconds, told in (
            (lesson.features.reference_s * numpy.exp(answer), errors),
            (reference, plain),
        ):
            found_s = lesson.sum_units(seconds).sum(2)
            told += (abs(found_s / lesson.measured_s.sum(2) - 1)).ravel().tolist()
    assert numpy.median(errors) < 0.12
    assert numpy.mean(errors) < 0.5 * numpy.mean(plain)


def test_the_ratio_of_steps_is_learned() -> None:
    """Where every step takes a quarter more than its ops, so it is predicted."""
    lessons = read_all(make_set(6))
    fit = fit_ratio(lessons[:4])
    assert fit.predict(lessons[5].features, lessons[5].sums_s) == pytest.approx(
        [RATIO] * len(SIZES), rel=0.01
    )
    assert fit_ratio(()).predict(lessons[0].features, lessons[0].sums_s).tolist() == [1.0] * 3


def test_features_are_finite_and_named() -> None:
    """Every op has every feature, at every size, and equal ops have equal ones."""
    net = make_net(64, 3)
    features = extract_features(net, CPU, batch_sizes=(8, 1))
    assert features.batch_sizes == (1, 8)
    assert features.values.shape == (2, len(net.ops), len(FEATURES))
    assert numpy.isfinite(features.values).all()
    assert (features.values[:, 2] == features.values[:, 4]).all(), "l1 and l2 are equal"
    exists = features.reference_s[0] > 0
    assert exists[0].tolist() == [True, False, True], "the first linear has no input gradient"


# -- novelty ---------------------------------------------------------------------------------------


def test_what_lies_outside_is_named() -> None:
    """A new kind, a far larger shape, another dtype and another device; what lies inside is not."""
    fence = build_fence([lesson.features for lesson in read_all(make_set(10))])

    def judge(*args: object, device: str = "cpu", precision: str | None = None) -> set[str | None]:
        net = make_net(*args[:2], last=str(args[2]))  # type: ignore[arg-type]
        kind = find_device_type(device)
        features = extract_features(net, kind, batch_sizes=SIZES, precision=precision)
        return set(find_novelties(fence, features))

    assert judge(200, 2, "relu") == {None}
    assert judge(200, 2, "mish") == {None, "mish: never measured"}
    wide = judge(20_000, 1, "relu")
    assert all(why is not None and "larger than measured" in why for why in wide)
    assert judge(200, 1, "relu", precision="bfloat16") == {
        "linear: never measured in bfloat16",
        "relu: never measured in bfloat16",
    }
    assert judge(200, 1, "relu", device="h100") == {"the device: never measured"}


# -- files -----------------------------------------------------------------------------------------


def test_a_set_survives_its_compressed_file(tmp_path: Path) -> None:
    """Writing and reading a set gives the set, and equal sets have equal bytes."""
    found = make_set(3)
    write_noun(found, tmp_path / "a.json.gz")
    write_noun(found, tmp_path / "b.json.gz")
    assert read_noun(tmp_path / "a.json.gz", CostSet) == found
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_broken_and_exploding_files_are_refused(tmp_path: Path) -> None:
    """A cut gzip file, and one that unpacks into more than any file of ours has."""
    write_noun(make_set(3), tmp_path / "whole.json.gz")
    (tmp_path / "cut.json.gz").write_bytes((tmp_path / "whole.json.gz").read_bytes()[:-20])
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * (MAX_FILE_BYTES + 1)))
    for name, why in (("cut", "not a whole gzip file"), ("bomb", "unpacks into more than")):
        with pytest.raises(InvalidFile, match=why):
            read_noun(tmp_path / f"{name}.json.gz", CostSet)


def test_tables_find_their_graphs(tmp_path: Path) -> None:
    """Loose graphs and tables join by fingerprint; a table alone, or an estimate, is refused."""
    sample = make_set(3).samples[0]
    write_noun(sample.graph, tmp_path / "graph.json")
    write_noun(sample.table, tmp_path / "table.json")
    found = read_training([tmp_path / "table.json", tmp_path / "graph.json"])
    assert [each.model for each in found.samples] == ["handmade"]
    assert found.samples[0].table == sample.table
    with pytest.raises(InvalidOption, match="not among the files"):
        read_training([tmp_path / "table.json"])
    write_noun(
        msgspec.structs.replace(sample.table, source="estimated"), tmp_path / "estimate.json"
    )
    with pytest.raises(InvalidOption, match="nothing to learn"):
        read_training([tmp_path / "graph.json", tmp_path / "estimate.json"])


def test_an_array_has_the_bytes_of_its_shape() -> None:
    """An array that claims more or fewer numbers than it holds cannot be made."""
    Array(dtype="float32", shape=(2, 3), content=bytes(24))
    for shape in ((2, 4), (1 << 40, 1 << 40), (-1, 6)):
        with pytest.raises(ValueError, match="array"):
            Array(dtype="float32", shape=shape, content=bytes(24))


# -- report ----------------------------------------------------------------------------------------


def test_the_summary_tells_how_certain_learned_costs_are() -> None:
    """Uncertainty and extrapolation stand in the report, with what to do about it."""
    example = make_plan_example(chain_edges(2), num_micro_batches=2)
    certainty = Certainty(
        step_uncertainty=0.08,
        extrapolated_ops=2,
        extrapolated_share=0.4,
        origin="network trained on 12 models; 2 of 6 ops extrapolated (mish: never measured)",
    )
    made = msgspec.structs.replace(example.plan.provenance, costs="learned", certainty=certainty)
    plan = msgspec.structs.replace(example.plan, provenance=made)
    text = render_text(plan, example.timeline, width=200)
    assert "costs: predicted by the learned cost model" in text
    assert "uncertainty: step time 8.0% (one standard deviation)" in text
    assert "EXTRAPOLATED: 2 of" in text
    assert "40.0% of the op times are extrapolated" in text
    assert "uncertainty" not in render_text(example.plan, example.timeline, width=200)


def test_the_summary_answers_the_micro_batch_question() -> None:
    """A model without a batch dimension has no micro-batches, and the report says why."""
    example = make_plan_example(chain_edges(2), num_micro_batches=1)
    model = msgspec.structs.replace(example.plan.model, batch="none")
    plan = msgspec.structs.replace(example.plan, model=model)
    text = render_text(plan, example.timeline, width=200)
    assert "no batch dimension: one step is one pass over all inputs" in text
    assert "The step cannot be split into micro-batches." in text
    assert "in micro-batches of" not in text
    assert "A larger batch" not in text


def test_a_sample_has_a_time_for_every_op() -> None:
    """A cost set whose table lacked one ended `learn` in a traceback."""
    sample = make_set(1).samples[0]
    table = msgspec.structs.replace(sample.table, rows=sample.table.rows[1:])
    with pytest.raises(ValueError, match="has no row for the op"):
        CostSample(model=sample.model, graph=sample.graph, table=table)
