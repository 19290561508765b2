"""Learn: a cost model from measured tables of many models.

Two predictors are trained on the same features: a graph network and boosted trees. The one with the
smaller error on the validation models (of ops plus of steps) is kept, and the card says so. The
roofline that both start from is calibrated on the training models; alone, it is what they are
compared with.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import platform
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy

import graphplan
from graphplan.cost.arrays import pack_array
from graphplan.cost.boost import Boost, fit_boost
from graphplan.cost.calibrate import calibrate_tables
from graphplan.cost.estimate import estimate_table
from graphplan.cost.features import FAMILIES, FEATURES, Floats
from graphplan.cost.judge import Guess, find_unit_ratios, judge_part
from graphplan.cost.learned_network import TrainedNetwork
from graphplan.cost.learned_train import train_network
from graphplan.cost.lessons import Lesson, flatten_lessons, read_lesson, tabulate_seconds
from graphplan.cost.novelty import Fence, build_fence
from graphplan.cost.predictors import NetworkPredictor, Predictor, TreesPredictor
from graphplan.cost.split import Split, split_models
from graphplan.cost.stepratio import RatioFit, fit_ratio, measure_ratio
from graphplan.nouns.cluster import DeviceType
from graphplan.nouns.costset import CostSample, CostSet
from graphplan.nouns.learned import Array, Card, LearnedCosts, LearnedDevice, Part

LIKELY = 0.68
"""Share of the validation units whose error is to be within the deviation that is told."""
LEAST_DEVIATION = 0.01
DEVIATION_PRIOR = 10.0
"""Units of weight that pull the deviation of an op kind towards that of all."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far learning is."""

    stage: str
    num_done: int
    num_steps: int
    error: float
    """On validation: mean absolute error of the log of seconds."""


Report = Callable[[Progress], None]


def learn_costs(
    found: CostSet,
    *,
    hold_out: Sequence[str] = (),
    seed: int = 0,
    epochs: int = 150,
    num_trees: int = 300,
    report: Report | None = None,
) -> LearnedCosts:
    """A cost model trained on all models of a set but those that are held out."""
    start = time.perf_counter()
    split = split_models(found.samples, hold_out=hold_out, seed=seed)
    school = _School(found, split)
    network = train_network(
        school.training,
        school.validation,
        seed=seed,
        epochs=epochs,
        report=_relay(report, "network", epochs),
    )
    boost = fit_boost(
        flatten_lessons(school.training),
        flatten_lessons(school.validation),
        seed=seed,
        num_trees=num_trees,
        report=_relay(report, "trees", num_trees),
    )
    ratio = fit_ratio(school.training)
    predictors: dict[str, Predictor] = {
        "network": _scale_network(network, school.validation),
        "trees": _scale_trees(boost, school.validation),
    }
    return _collect(
        _Candidates(school, predictors, ratio),
        seed=seed,
        epochs=network.epochs,
        seconds=time.perf_counter() - start,
    )


class _School:
    """The data of one training: samples and lessons by part, and the calibrated rooflines."""

    def __init__(self, found: CostSet, split: Split) -> None:
        self.found = found
        self.split = split
        train = [sample for sample in found.samples if sample.model in split.training]
        self.rooflines = {
            device.name: _calibrate(device, train, with_steps=False) for device in found.devices
        }
        self._step_rooflines = {
            device.name: _calibrate(device, train, with_steps=True) for device in found.devices
        }
        self.training, self.validation, self.held_out = (
            [self._read(sample) for sample in found.samples if sample.model in models]
            for models in (split.training, split.validation, split.held_out)
        )

    def _read(self, sample: CostSample) -> Lesson:
        name = sample.table.device
        device = self.found.device_by_name[name]
        return read_lesson(sample, device, roofline=self.rooflines[name])

    def guess_by_roofline(self, models: frozenset[str]) -> list[Guess]:
        """What the calibrated roofline says: one fitted to ops alone, one to ops in steps."""
        return [
            Guess(
                seconds=_estimate(sample, self.rooflines[sample.table.device]),
                steps_s=_estimate(sample, self._step_rooflines[sample.table.device]).sum((1, 2)),
            )
            for sample in self.found.samples
            if sample.model in models
        ]


def _calibrate(
    device: DeviceType, samples: Sequence[CostSample], *, with_steps: bool
) -> DeviceType:
    """The roofline of a device fitted to its tables, to ops alone or as they run in a step."""
    tables = [
        (
            sample.graph,
            sample.table if with_steps else msgspec.structs.replace(sample.table, calibration=()),
        )
        for sample in samples
        if sample.table.device == device.name
    ]
    source = f"calibrated on {len(tables)} tables"
    return calibrate_tables(device, tables, source=source) if tables else device


def _estimate(sample: CostSample, roofline: DeviceType) -> Floats:
    table = estimate_table(sample.graph, roofline, batch_sizes=sample.table.batch_sizes)
    return tabulate_seconds(table, [op.name for op in sample.graph.ops])


def _guess(predictor: Predictor, ratio: RatioFit, lesson: Lesson) -> Guess:
    mean, deviation = predictor.answer(lesson.features)
    seconds = lesson.features.reference_s * numpy.exp(mean)
    sums = seconds.sum((1, 2))
    return Guess(seconds, sums * ratio.predict(lesson.features, sums), deviation)


def _scale_network(network: TrainedNetwork, lessons: Sequence[Lesson]) -> NetworkPredictor:
    """The factor with which the told deviations hold for the validation units."""
    plain = NetworkPredictor(network, 1.0)
    nothing = fit_ratio(())
    errors = [find_unit_ratios(each, _guess(plain, nothing, each)) for each in lessons]
    return NetworkPredictor(network, float(numpy.quantile(numpy.concatenate(errors), LIKELY)))


def _scale_trees(boost: Boost, lessons: Sequence[Lesson]) -> TreesPredictor:
    """Deviations by op kind from the errors on the validation units."""
    plain = TreesPredictor(boost, numpy.ones(len(boost.kinds)))
    nothing = fit_ratio(())
    by_kind: dict[str, list[float]] = {}
    for lesson in lessons:
        errors = find_unit_ratios(lesson, _guess(plain, nothing, lesson))
        names = lesson.unit_kinds * len(lesson.features.batch_sizes)
        for kind, error in zip(names, errors.tolist(), strict=True):
            by_kind.setdefault(kind, []).append(error)
    overall = float(numpy.quantile([e for each in by_kind.values() for e in each], LIKELY))
    deviations = [_pull(by_kind.get(kind, []), overall) for kind in boost.kinds]
    return TreesPredictor(boost, numpy.maximum(deviations, LEAST_DEVIATION))


def _pull(errors: Sequence[float], overall: float) -> float:
    own = float(numpy.quantile(errors, LIKELY)) if errors else overall
    return (len(errors) * own + DEVIATION_PRIOR * overall) / (len(errors) + DEVIATION_PRIOR)


@dataclasses.dataclass(frozen=True)
class _Candidates:
    """Both predictors with what they share, to be judged on a part of the data."""

    school: _School
    predictors: dict[str, Predictor]
    ratio: RatioFit

    def judge(
        self, lessons: Sequence[Lesson], models: frozenset[str], chosen: str | None = None
    ) -> Part:
        """How good they and the roofline are on some lessons."""
        told = {
            name: [_guess(each, self.ratio, lesson) for lesson in lessons]
            for name, each in self.predictors.items()
        }
        told["roofline"] = self.school.guess_by_roofline(models)
        return judge_part(lessons, told, chosen=chosen)

    def measure_errors(self) -> dict[str, float]:
        """Error of ops plus error of steps on the validation models, by predictor."""
        part = self.judge(self.school.validation, self.school.split.validation)
        scores = part.score_by_predictor
        return {name: scores[name].op_error + scores[name].step_error for name in self.predictors}


def _collect(candidates: _Candidates, *, seed: int, epochs: int, seconds: float) -> LearnedCosts:
    """The file: the better predictor, and a card about both."""
    school, judge = candidates.school, candidates.judge
    split = school.split
    errors = candidates.measure_errors()
    chosen = min(errors, key=lambda name: errors[name])
    card = Card(
        date=str(datetime.date.today()),
        versions=_list_versions(),
        seed=seed,
        devices=tuple(device.name for device in school.found.devices),
        provenance=(school.found.provenance,),
        training=judge(school.training, split.training, chosen),
        validation=judge(school.validation, split.validation, chosen),
        held_out=judge(school.held_out, split.held_out, chosen) if split.held_out else None,
        why=f"op error plus step error on validation: network {errors['network']:.3f},"
        f" trees {errors['trees']:.3f}",
        epochs=epochs,
        training_s=round(seconds, 1),
    )
    fence = build_fence([lesson.features for lesson in school.training])
    return LearnedCosts(
        predictor="network" if chosen == "network" else "trees",
        card=card,
        devices=tuple(
            LearnedDevice(plain=device, roofline=school.rooflines[device.name])
            for device in school.found.devices
        ),
        features=FEATURES,
        kinds=fence.kinds,
        families=FAMILIES,
        dtypes=fence.dtypes,
        arrays=candidates.predictors[chosen].pack() | _pack_rest(candidates, fence),
    )


def _pack_rest(candidates: _Candidates, fence: Fence) -> dict[str, Array]:
    """What every prediction needs besides its predictor: step ratios, and the known range."""
    ratio = candidates.ratio
    error = max(ratio.error, measure_ratio(ratio, candidates.school.validation))
    values_by_name = {
        "ratio.mean": ratio.mean,
        "ratio.deviation": ratio.deviation,
        "ratio.coefficients": ratio.coefficients,
        "ratio.error": numpy.array([error]),
        "fence.low": fence.low,
        "fence.high": fence.high,
        "fence.devices": fence.devices,
    }
    return {name: pack_array(values) for name, values in values_by_name.items()}


def _list_versions() -> dict[str, str]:
    packages = ("torch", "torch-geometric", "numpy")
    return {
        "graphplan": graphplan.__version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def _relay(
    report: Report | None, stage: str, num_steps: int
) -> Callable[[int, float], None] | None:
    if report is None:
        return None
    return lambda done, error: report(Progress(stage, done, num_steps, error))
