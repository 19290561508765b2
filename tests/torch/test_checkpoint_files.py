"""Checkpoints on the disk: no changed byte goes unnoticed, and no good one is lost."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphplan.errors import InvalidFile, InvalidOption, RunFailed
from graphplan_runtime.checkpoints.checkpoint import (
    MANIFEST,
    MANIFEST_SUM,
    Manifest,
    read_checkpoint,
    read_manifest,
)
from graphplan_runtime.checkpoints.shelf import find_checkpoint, find_older
from graphplan_runtime.checkpoints.tensorfile import read_tensors, write_tensors
from graphplan_runtime.checkpoints.writing import SaveFolder

FILE = "rank-0000.safetensors"
TENSORS = {"weight": torch.tensor([1.5, -2.0]), "mask": torch.tensor([True, False])}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SaveFolder]:
    """A folder in which nothing is saved yet."""
    made = SaveFolder(tmp_path / "saved", rank=0, num_ranks=1, warn=pytest.fail)
    yield made
    made.close()


def save(folder: SaveFolder, step: int, **options: Any) -> Path:
    """A checkpoint whose weight is the number of the step."""
    weight = options.pop("weight", float(step))
    manifest = Manifest(model="m", step=step, seed=0)
    return folder.write(manifest, {**TENSORS, "weight": torch.full((2,), weight)}, **options)


def read_all(checkpoint: Path, *, verify: bool = True) -> dict[str, torch.Tensor]:
    """Everything that a checkpoint holds."""
    manifest = read_manifest(checkpoint, verify=verify)
    return read_checkpoint(checkpoint, manifest, set(manifest.file_by_tensor), verify=verify)


def names(folder: SaveFolder) -> list[str]:
    """The checkpoints that are there."""
    return sorted(path.name for path in folder.folder.glob("step-*"))


# -- checksums -----------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [FILE, MANIFEST, MANIFEST_SUM])
@pytest.mark.parametrize("flip", [0x01, 0xFF], ids=hex)
def test_every_changed_byte_is_noticed(folder: SaveFolder, file: str, flip: int) -> None:
    """At every single position of every file."""
    done = save(folder, 1)
    path = done / file
    content = path.read_bytes()
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= flip
        path.write_bytes(changed)
        with pytest.raises(InvalidFile, match=r"step-00000001"):
            read_all(done)
    path.write_bytes(content)
    assert torch.equal(read_all(done)["weight"], torch.ones(2))


@pytest.mark.parametrize("file", [FILE, MANIFEST, MANIFEST_SUM])
def test_every_lost_end_is_noticed(folder: SaveFolder, file: str) -> None:
    """Cut at every position, or with a byte more."""
    done = save(folder, 1)
    path = done / file
    content = path.read_bytes()
    for text in (*(content[:length] for length in range(len(content))), content + b"\n"):
        path.write_bytes(text)
        with pytest.raises(InvalidFile):
            read_all(done)
    path.unlink()
    with pytest.raises(InvalidFile):
        read_all(done)


def test_a_broken_tensor_is_named(folder: SaveFolder) -> None:
    """With its file; without verification it is read as it is."""
    done = save(folder, 1)
    path = done / FILE
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    with pytest.raises(InvalidFile, match=rf"{FILE} is not .* checksum of 'weight'"):
        read_all(done)
    assert read_all(done, verify=False).keys() == TENSORS.keys()


def test_sums_are_those_of_other_tools(folder: SaveFolder) -> None:
    """`sha256sum -c manifest.sha256` agrees."""
    import hashlib

    done = save(folder, 1)
    text = (done / MANIFEST_SUM).read_text()
    assert text == f"{hashlib.sha256((done / MANIFEST).read_bytes()).hexdigest()}  {MANIFEST}\n"


def test_version_1_is_still_read(folder: SaveFolder) -> None:
    """Without checksums; but a file that has lost them is not of version 1."""
    done = save(folder, 1)
    facts = json.loads((done / MANIFEST).read_text())
    for new in ("seal_by_file", "serial", "finite"):
        del facts[new]
    facts["version"] = 1
    (done / MANIFEST_SUM).unlink()
    with pytest.raises(InvalidFile, match="version 2"):
        read_manifest(done)
    (done / MANIFEST).write_text(json.dumps(facts))
    assert torch.equal(read_all(done)["weight"], torch.ones(2))


# -- tensor files --------------------------------------------------------------------------------


def write_file(path: Path, header: object, data: bytes = bytes(8)) -> Path:
    """A tensor file by hand."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, object]:
    """One tensor of a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


HOSTILE: dict[str, object] = {
    "huge and empty": {"x": entry([0, 1 << 62, 1 << 62], 0, 0), "y": entry([2], 0, 8)},
    "huge": {"x": entry([1 << 62, 1 << 62], 0, 8)},
    "beyond 64 bits": {"x": entry([1 << 70], 0, 8)},
    "negative": {"x": entry([-1, -2], 0, 8)},
    "65 dimensions": {"x": entry([1] * 64 + [2], 0, 8)},
    "overlap": {"x": entry([2], 0, 8), "y": entry([1], 4, 8)},
    "gap": {"x": entry([1], 4, 8)},
    "too short": {"x": entry([1], 0, 4)},
    "backwards": {"x": entry([0], 8, 0), "y": entry([2], 0, 8)},
    "scalar of two": {"x": entry([], 0, 8)},
    "unknown dtype": {"x": entry([2], 0, 8, "F33")},
    "twice": b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    b'"x":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}',
    "metadata of numbers": {"__metadata__": {"a": 1}, "x": entry([2], 0, 8)},
    "list": [],
    "deep": b"[" * 100_000,
    "no UTF-8": b'{"\xff": 1}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused(tmp_path: Path, name: str) -> None:
    """Before any memory is taken."""
    path = write_file(tmp_path / "x", HOSTILE[name])
    with pytest.raises(InvalidFile, match="is not a whole tensor file"):
        read_tensors(path, ["x", "y"])


def test_bytes_that_are_no_truth_values_are_refused(tmp_path: Path) -> None:
    """torch would count on them."""
    header = {"x": entry([8], 0, 8, "BOOL")}
    assert read_tensors(write_file(tmp_path / "x", header), ["x"])["x"].dtype is torch.bool
    with pytest.raises(InvalidFile, match="neither true nor false"):
        read_tensors(write_file(tmp_path / "x", header, bytes(7) + b"\2"), ["x"])


def test_another_shape_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A sparse file costs nothing on the disk, its tensor would in memory."""
    size = 1 << 40
    path = write_file(tmp_path / "x", {"x": entry([size // 4], 0, size)}, b"")
    try:
        os.truncate(path, path.stat().st_size + size)
    except OSError:
        pytest.skip("this file system has no files of this size")
    with pytest.raises(InvalidFile, match="has shape"):
        read_tensors(path, ["x"], shapes={"x": (2,)})


def test_metadata_is_written_and_read(tmp_path: Path) -> None:
    """As other writers of safetensors do."""
    write_tensors(tmp_path / "x", TENSORS)
    content = (tmp_path / "x").read_bytes()
    header = json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])
    assert header["__metadata__"] == {"format": "pt"}
    assert torch.equal(read_tensors(tmp_path / "x", ["weight"])["weight"], TENSORS["weight"])


# -- what `latest` names -------------------------------------------------------------------------


def point(text: bytes) -> Callable[[Path], object]:
    """Write something else into `latest`."""
    return lambda folder: (folder / "latest").write_bytes(text)


def move_away(folder: Path) -> None:
    """The last checkpoint becomes a link to somewhere else."""
    (folder / "step-00000002").rename(folder.parent / "elsewhere")
    (folder / "step-00000002").symlink_to(folder.parent / "elsewhere")


def make_pipe(path: Path) -> None:
    """Put a pipe in the place of a file: whoever opens it waits for ever."""
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("file", [FILE, MANIFEST, MANIFEST_SUM])
def test_pipes_are_not_waited_for(folder: SaveFolder, file: str) -> None:
    """A folder of somebody else may hold anything."""
    done = save(folder, 1)
    make_pipe(done / file)
    with pytest.raises(InvalidFile):
        read_all(done)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (point(bytes(range(256))), "no checkpoint of this folder"),
        (point(b""), "no checkpoint of this folder"),
        (point(b"../elsewhere"), "no checkpoint of this folder"),
        (point(b"/etc"), "no checkpoint of this folder"),
        (point(b"step-00000009\n"), "not there"),
        (lambda folder: (folder / "latest").unlink(), "does not exist"),
        (lambda folder: shutil.rmtree(folder / "step-00000002"), "not there"),
        (lambda folder: (folder / "step-00000002" / MANIFEST).unlink(), "not there"),
        (move_away, "a link"),
        (lambda folder: make_pipe(folder / "latest"), "no file"),
    ],
)
def test_latest_falls_back_with_a_word(
    folder: SaveFolder, damage: Callable[[Path], object], why: str
) -> None:
    """To the newest whole checkpoint."""
    save(folder, 1)
    last = save(folder, 2)
    damage(folder.folder)
    found = find_checkpoint(folder.folder)
    assert found is not None and found.word is not None
    is_there = (last / MANIFEST).is_file() and not last.is_symlink()
    assert found.path.name == ("step-00000002" if is_there else "step-00000001")
    assert why in found.word and found.path.name in found.word


def test_a_broken_checkpoint_is_not_passed_over(folder: SaveFolder) -> None:
    """To go on from older weights without a word would be a lie; the older one is known."""
    older, last = save(folder, 1), save(folder, 2)
    (last / FILE).write_bytes((last / FILE).read_bytes()[:-1])
    found = find_checkpoint(folder.folder)
    assert found is not None and found.path == last
    assert find_older(last) == older


def test_order_is_that_of_writing(folder: SaveFolder) -> None:
    """A run that resumes from an old step writes lower numbers than are there."""
    for step in (10, 20, 5, 6):
        save(folder, step)
    assert names(folder) == ["step-00000005", "step-00000006"]
    again = save(folder, 6)
    assert again.name == "step-00000006.1"
    (folder.folder / "latest").unlink()
    found = find_checkpoint(folder.folder)
    assert found is not None and found.path == again


# -- finite weights ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_last_finite_checkpoint_stays(tmp_path: Path, value: float) -> None:
    """However many come after it, and `latest` goes on naming it."""
    words: list[str] = []
    folder = SaveFolder(tmp_path, rank=0, num_ranks=1, warn=words.append)
    save(folder, 1)
    good = save(folder, 2)
    for step in (3, 4, 5):
        save(folder, step, weight=value)
    assert names(folder) == ["step-00000002", "step-00000004", "step-00000005"]
    found = find_checkpoint(tmp_path)
    assert found is not None and (found.path, found.word) == (good, None)
    assert not read_manifest(tmp_path / "step-00000005").finite
    assert [word.split(":")[0] for word in words] == [
        f"After step {step}, 'weight' is not finite" for step in (3, 4, 5)
    ]
    save(folder, 6, keep_last=1)
    assert names(folder) == ["step-00000006"]
    folder.close()


def test_masks_may_be_infinite(folder: SaveFolder) -> None:
    """What training does not change is as the user made it."""
    assert read_manifest(save(folder, 1, weight=math.inf, allowed={"weight": "infinite"})).finite
    assert read_manifest(save(folder, 2, weight=math.nan, allowed={"weight": "anything"})).finite


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64]
)
def test_one_odd_value_among_many_is_seen(tmp_path: Path, dtype: torch.dtype) -> None:
    """In every dtype, and in whichever chunk it lies."""
    values = torch.ones(600_001, dtype=dtype)
    assert write_tensors(tmp_path / "x", {"x": values}).not_finite is None
    for position in (0, 300_000, 600_000):
        for odd in (math.nan, -math.inf):
            changed = values.clone()
            changed[position] = odd
            assert write_tensors(tmp_path / "x", {"x": changed}).not_finite == "x"


# -- folders that cannot be written --------------------------------------------------------------


@pytest.mark.parametrize("name", ["a file", "a file/saved", "/proc/graphplan"])
def test_a_folder_is_tried_first(tmp_path: Path, name: str) -> None:
    """One that cannot be made or written is bad input, before anything is trained."""
    (tmp_path / "a file").write_text("")
    with pytest.raises(InvalidOption, match="Cannot save into") as caught:
        SaveFolder(tmp_path / name, rank=0, num_ranks=1, warn=pytest.fail)
    assert caught.value.exit_code == 2


def test_a_full_disk_loses_nothing(folder: SaveFolder) -> None:
    """One clear error, nothing half-written, the last checkpoint as it was."""
    good = save(folder, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(RunFailed, match=r"step 2 cannot be written: File too large") as caught:
            folder.write(Manifest(model="m", step=2, seed=0), {"weight": torch.ones(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(good) in caught.value.message
    assert f"--resume {folder.folder}" in caught.value.remedy
    assert not [path for path in folder.folder.iterdir() if path.name.startswith(".")]
    found = find_checkpoint(folder.folder)
    assert (
        found is not None
        and found.path == good
        and torch.equal(read_all(good)["weight"], torch.ones(2))
    )
    save(folder, 3)


def test_what_a_killed_run_left_is_swept(tmp_path: Path) -> None:
    """Half-written and half-deleted checkpoints go; foreign files stay."""
    for name in (".step-00000003", ".dropped-step-00000001", "step-by-step"):
        (tmp_path / name).mkdir()
    (tmp_path / ".latest.new").touch()
    folder = SaveFolder(tmp_path, rank=0, num_ranks=1, warn=pytest.fail)
    for step in (1, 2, 3):
        save(folder, step)
    folder.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "latest",
        "step-00000002",
        "step-00000003",
        "step-by-step",
    ]
