"""What a run that resumes or saves is told, refused and spared."""

from __future__ import annotations

import dataclasses
import json
import math
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from graphplan.errors import GraphplanError
from graphplan_runtime import Pipeline
from graphplan_runtime.checkpoints.checkpoint import (
    MANIFEST,
    MANIFEST_SUM,
    read_checkpoint,
    read_manifest,
)
from graphplan_runtime.checkpoints.lock import LOCK, Lock
from graphplan_runtime.checkpoints.writing import SaveFolder
from tests.processes.crew import Crew
from tests.processes.test_checkpoints import train_and_save
from tests.processes.training import (
    Result,
    Setup,
    make_batches,
    make_pipeline,
    read_weights,
    train_pipeline,
)

TWO = Setup(case="normed", devices=[(0,), (1,)], num_steps=6)


def told_by(action: Callable[[], object]) -> str:
    """The error that something ends in."""
    try:
        action()
    except GraphplanError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def load(setup: Setup, folder: str, verify: bool = True) -> str:
    """The error of loading."""
    pipeline = make_pipeline(setup)
    return told_by(lambda: pipeline.load(folder, verify=verify))


def resume_with_words(setup: Setup, folder: str) -> tuple[list[str], Result]:
    """What is said, and what training to the end gives."""
    words: list[str] = []
    pipeline = make_pipeline(setup)
    pipeline.warn = words.append
    done = pipeline.load(folder)
    losses = [pipeline.step(batch) for batch in make_batches(setup)[done:]]
    return words, Result(losses, read_weights(pipeline))


def test_another_optimizer_is_refused(crew: Crew, tmp_path: Path) -> None:
    """Its states mean something else."""
    crew.run(2, train_and_save, TWO, str(tmp_path), 3)
    other = dataclasses.replace(TWO, optimizer="adamw")
    for told in crew.run(2, load, other, str(tmp_path)):
        assert told.startswith("InvalidOption: The checkpoint was made with SGD, this run has Adam")


def test_other_options_and_seeds_are_said(crew: Crew, tmp_path: Path) -> None:
    """By rank 0, once; the run goes on with those of the checkpoint, equal to the last bit."""
    whole = crew.run(2, train_pipeline, TWO)
    crew.run(2, train_and_save, TWO, str(tmp_path), 3)
    other = dataclasses.replace(TWO, optimizer="plain", pipeline={"seed": 5})
    (words, first), (others, second) = crew.run(2, resume_with_words, other, str(tmp_path))
    assert others == []
    assert words == [
        "The seed of the checkpoint is used: 0 in place of 5.",
        "The options of the checkpoint are used: momentum 0.9 in place of 0, weight_decay 0.01 in"
        " place of 0.",
    ]
    assert first.losses == whole[0].losses[3:]
    for one, two in zip(whole, (first, second), strict=True):
        assert all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)


def test_every_rank_verifies_what_it_reads(crew: Crew, tmp_path: Path) -> None:
    """Those whose file is whole end with the others; the older checkpoint is named."""
    crew.run(2, train_and_save, TWO, str(tmp_path), 2)
    crew.run(2, train_and_save, TWO, str(tmp_path), 3)
    path = tmp_path / "step-00000003" / "rank-0001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    first, second = crew.run(2, load, TWO, str(tmp_path))
    assert first.startswith("LostPeer: rank 1 cannot read")
    assert second.startswith(f"InvalidFile: {path} is not a whole tensor file: the checksum of")
    assert f"--resume {tmp_path / 'step-00000002'}; --no-verify" in second
    assert crew.run(2, load, TWO, str(tmp_path / "step-00000002")) == ["no error"] * 2
    assert crew.run(2, load, TWO, str(tmp_path), False) == ["no error"] * 2


def test_version_1_goes_on_with_a_word(crew: Crew, tmp_path: Path) -> None:
    """It has no checksums, and does not name the optimizer; its options tell."""
    whole = crew.run(2, train_pipeline, TWO)
    crew.run(2, train_and_save, TWO, str(tmp_path), 3)
    path = tmp_path / "step-00000003" / MANIFEST
    facts = json.loads(path.read_text())
    for new in ("seal_by_file", "serial", "finite"):
        del facts[new]
    for group in facts["groups"]:
        del group["optimizer"]
    path.write_text(json.dumps({**facts, "version": 1}))
    path.with_name(MANIFEST_SUM).unlink()
    (words, first), _ = crew.run(2, resume_with_words, TWO, str(tmp_path))
    assert len(words) == 1 and "of version 1, without checksums" in words[0]
    assert first.losses == whole[0].losses[3:]
    told = crew.run(2, load, dataclasses.replace(TWO, optimizer="adamw"), str(tmp_path))
    assert "The checkpoint was made with another optimizer, this run has AdamW" in told[0]


def forge(source: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """A checkpoint with right checksums that no run has written."""
    manifest = read_manifest(source)
    tensors = read_checkpoint(source, manifest, set(manifest.file_by_tensor))
    change(tensors)
    folder = SaveFolder(target, rank=0, num_ranks=1, warn=pytest.fail)
    folder.write(manifest, tensors, manifest.groups)
    folder.close()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.pop("optimizer/exp_avg/one.weight"), "the state of 'one.weight' is"),
        (lambda t: t.update({"optimizer/x/one.bias": torch.ones(6)}), "the state of 'one.bias'"),
        (lambda t: t.update({"optimizer/step/one.bias": torch.ones(9)}), "'step' of 'one.bias'"),
        (lambda t: t.pop("two.bias"), "has no weight 'two.bias'"),
        (lambda t: t.update({"two.bias": torch.ones(1)}), "'two.bias' has shape (1,), not (6,)"),
    ],
)
def test_forged_checkpoints_are_refused(
    crew: Crew, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], told: str
) -> None:
    """Before the first step trips over them."""
    setup = Setup(case="normed", devices=[(0,), (0,)], schedule="gpipe", optimizer="adamw")
    crew.run(1, train_and_save, setup, str(tmp_path / "real"), 2)
    forge(tmp_path / "real" / "step-00000002", tmp_path / "forged", change)
    found = crew.run(1, load, setup, str(tmp_path / "forged"))[0]
    assert found.startswith("InvalidFile: ")
    assert told in found


def prepare(setup: Setup, folder: str) -> str:
    """The error of trying a folder."""
    pipeline = make_pipeline(setup)
    return told_by(lambda: pipeline.prepare_save(folder))


def test_a_second_run_is_refused_before_it_trains(crew: Crew, tmp_path: Path) -> None:
    """With who holds the folder."""
    lock = Lock(tmp_path)
    lock.take(pytest.fail)
    first, second = crew.run(2, prepare, TWO, str(tmp_path))
    lock.release()
    assert first.startswith(f"InvalidOption: {tmp_path} is in use: {lock.own}")
    assert second.startswith("LostPeer: rank 0 cannot save into")
    assert crew.run(2, prepare, TWO, str(tmp_path)) == ["no error"] * 2


def prepare_without_room(setup: Setup, folder: str) -> str:
    """Rank 1 cannot write a byte."""
    pipeline = make_pipeline(setup)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        return told_by(lambda: pipeline.prepare_save(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_every_rank_tries_the_folder(crew: Crew, tmp_path: Path) -> None:
    """And none keeps it when one cannot write."""
    first, second = crew.run(2, prepare_without_room, TWO, str(tmp_path))
    assert first.startswith("LostPeer: rank 1 cannot save into")
    assert second.startswith(f"InvalidOption: Cannot save into {tmp_path}: File too large")
    assert not (tmp_path / LOCK).exists()


def save_on_a_full_disk(setup: Setup, folder: str) -> tuple[str, str]:
    """Rank 1 has no room for the second checkpoint; then it has."""
    pipeline = make_pipeline(setup)
    batches = make_batches(setup)
    pipeline.step(batches[0])
    pipeline.save(folder)
    pipeline.step(batches[1])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        told = told_by(lambda: pipeline.save(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return told, pipeline.save(folder).name


def test_a_full_disk_of_one_rank_ends_all(crew: Crew, tmp_path: Path) -> None:
    """With the cause at that rank; nothing half-written is left."""
    (first, name), (second, same) = crew.run(2, save_on_a_full_disk, TWO, str(tmp_path))
    assert first.startswith("LostPeer: rank 1 cannot save into")
    assert second.startswith("RunFailed: The checkpoint of step 2 cannot be written: File too")
    assert str(tmp_path / "step-00000001") in second
    assert name == same == "step-00000002"
    assert not list(tmp_path.glob(".step-*"))


def stop_at_bad_batch(setup: Setup) -> tuple[str, bool]:
    """The error of a batch with bad gradients, and whether the weights are as before."""
    pipeline = make_pipeline(setup)
    batches = make_batches(setup)
    pipeline.step(batches[0])
    if pipeline.flight is not None:
        pipeline.drain()
    before = read_weights(pipeline)
    batches[1][0][-1] = 0.0

    def train() -> None:
        pipeline.step(batches[1])
        pipeline.drain()

    told = told_by(train)
    return told, _are_equal(pipeline, before)


def _are_equal(pipeline: Pipeline, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(before[name], each) for name, each in pipeline.weights.items())


ROOTS = Setup(case="roots", devices=[(0,), (1,)], pipeline={"check_finite": True})


def test_check_finite_stops_before_any_stage_is_updated(crew: Crew) -> None:
    """Also before those whose own gradients are finite and known first."""
    (first, first_is_same), (second, second_is_same) = crew.run(2, stop_at_bad_batch, ROOTS)
    assert first.startswith("NotFinite: the gradient of 'one.weight' is not finite")
    assert second.startswith("LostPeer: a gradient of another rank is not finite")
    assert first_is_same and second_is_same


def find_odd_weights(setup: Setup) -> tuple[str, list[str]]:
    """The error of a batch with bad gradients, and the weights that have become bad."""
    pipeline = make_pipeline(setup)
    batches = make_batches(setup)
    batches[1][0][-1] = 0.0

    def train() -> None:
        for batch in batches:
            pipeline.step(batch)
        pipeline.drain()

    told = told_by(train)
    return told, [name for name, w in pipeline.weights.items() if not bool(w.isfinite().all())]


@pytest.mark.parametrize("check", [True, False])
def test_check_finite_of_a_stream_stops_before_the_stage_is_updated(
    crew: Crew, check: bool
) -> None:
    """Other stages may have been updated; no weight has become bad."""
    setup = dataclasses.replace(
        ROOTS, devices=[(0,), (0,)], policy="stash", pipeline={"check_finite": check}
    )
    told, odd = crew.run(1, find_odd_weights, setup)[0]
    assert told.startswith("NotFinite" if check else "no error")
    assert bool(odd) is not check


def test_checks_change_nothing_else(crew: Crew) -> None:
    """Updates that wait are the same updates."""
    plain = dataclasses.replace(ROOTS, pipeline={})
    for one, two in zip(
        crew.run(2, train_pipeline, plain), crew.run(2, train_pipeline, ROOTS), strict=True
    ):
        assert one.losses == two.losses
        assert all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)


def save_in_flight(setup: Setup, folder: str) -> list[str]:
    """Save while the loss of a bad batch is known and not told; the words."""
    words: list[str] = []
    pipeline = make_pipeline(setup)
    pipeline.warn = words.append
    for number, batch in enumerate(make_batches(setup)[:4]):
        pipeline.step(batch)
        if number in (0, 2, 3):
            pipeline.save(folder)
    return words


def test_a_stream_with_bad_values_is_saved_and_resumed(crew: Crew, tmp_path: Path) -> None:
    """JSON has no NaN; what is in flight counts, since it will be in the weights soon."""
    setup = Setup(
        case="chain",
        devices=[(0,), (0,), (0,), (0,)],
        policy="stash",
        num_steps=5,
        infinite_steps=[2],
    )
    words = crew.run(1, save_in_flight, setup, str(tmp_path))[0]
    assert [word[:12] for word in words] == ["After step 3", "After step 4"]
    assert (tmp_path / "latest").read_text() == "step-00000001\n"
    whole = crew.run(1, train_pipeline, setup)[0]
    said, rest = crew.run(1, resume_with_words, setup, str(tmp_path / "step-00000004"))[0]
    assert "not finite" in said[0]
    assert [math.isnan(loss) for loss in rest.losses] == [math.isnan(x) for x in whole.losses[4:]]
    good, again = crew.run(1, resume_with_words, setup, str(tmp_path))[0]
    assert good == []
    assert [*map(str, again.losses)] == [*map(str, whole.losses[1:])]
