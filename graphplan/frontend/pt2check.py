"""What can be checked of a `.pt2` file before torch loads it, and with that executes it.

A saved program is code, as a model file is. torch looks up whatever function its graph names,
evaluates its symbolic sizes as Python, and unpickles its example inputs. This check keeps out what
no saved model needs: pickles of anything but tensors, functions that are no ops, compiled
libraries, expressions that are no arithmetic, archives that unpack into more than they hold. It
does not make a foreign file safe.
"""

from __future__ import annotations

import io
import pickletools
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from graphplan.cost.measure_allowed import NotKnown, check_signature
from graphplan.errors import ModelFileError
from graphplan.files import UNREADABLE

MAX_JSON_BYTES = 256 << 20
MAX_PICKLE_BYTES = 16 << 20
MAX_MEMBERS = 1 << 20
MAX_EXPRESSION = 10_000
MAX_DEPTH = 64
"""Parentheses inside of parentheses."""
_END = struct.Struct("<4s4H2LH")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64 = struct.Struct("<4sLQL")
"""What stands at the end of an archive, and before it when the archive has 4 GB or more."""
_MOST_32 = (1 << 32) - 1

_JSON = re.compile(
    r"models/[\w.-]+\.json|data/(?:weights|constants)/[\w.-]+_(?:weights|constants)_config\.json"
)
_PICKLE = re.compile(r"data/sample_inputs/[\w.-]+\.pt")
_RAW = re.compile(
    r"data/weights/weight_\d+|data/constants/tensor_\d+|extra/[\w./-]+|\.data/\w+"
    r"|archive_format|archive_version|byteorder|version|\.format_version|\.storage_alignment"
)
_NESTED = re.compile(
    r"data\.pkl|data/\d+|version|byteorder|\.data/\w+|\.format_version|\.storage_alignment"
)
_GLOBALS = re.compile(
    r"torch\._utils (_rebuild_tensor_v2|_rebuild_parameter)|collections OrderedDict"
    r"|torch (\w+Storage|device|Size|float\w*|bfloat16|u?int\d+|bool|complex\d+)"
    r"|torch\.storage (UntypedStorage|TypedStorage)"
)
_OPCODES = ("STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4")
"""Opcodes that make objects of classes which no GLOBAL names; tensors need none of them."""
_FUNCTION = re.compile(
    r"_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|pow|neg|pos|abs|lt|le|gt|ge|eq|ne|and_"
    r"|or_|xor|not_|invert|lshift|rshift|iadd|isub|imul)|math\.[a-z0-9_]+|torch\._?sym_\w+"
)
_OP = re.compile(r"torch\.ops\.([A-Za-z]\w*)\.(\w+)\.(\w+)", re.ASCII)
_HIGHER = re.compile(r"torch\.ops\.higher_order\.\w+", re.ASCII)
_UNFIT = re.compile(r".*(torchbind|delegate|triton|aoti|print|effects|asm|invoke_leaf|py_object).*")
_WORD = re.compile(
    r"\d+(\.\d+)?(e[+-]?\d+)?|'?[suzf]+\d+'?|[A-Z]\w{0,40}|positive|negative|nonnegative|integer"
    r"|real|finite|zero|nonzero|precision|true|false|oo|int_oo|zoo|nan|[-+*/%(),=<>&|~!\s]"
)
_FUNCTIONS = frozenset((
    "Symbol", "Integer", "Float", "Rational", "Mul", "Add", "Pow", "Max", "Min", "Mod",
    "PythonMod", "FloorDiv", "CeilDiv", "CleanDiv", "CeilToInt", "FloorToInt", "TruncToInt",
    "TruncToFloat", "RoundToInt", "RoundDecimal", "ToFloat", "IntTrueDiv", "FloatTrueDiv",
    "ModularIndexing", "Where", "LShift", "RShift", "PowByNatural", "FloatPow", "Identity",
    "Piecewise", "ExprCondPair", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "Equality", "Unequality",
    "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan", "And", "Or", "Not",
    "BitwiseFn_bitwise_and", "BitwiseFn_bitwise_or", "Infinity", "NegativeInfinity",
    "IsNonOverlappingAndDenseIndicator", "True", "False",
))  # fmt: skip
_GROWING = frozenset(("Pow", "PowByNatural", "FloatPow", "LShift"))


_TORN = (
    *(OSError, zipfile.BadZipFile, zlib.error, struct.error),
    *(NotImplementedError, RuntimeError, EOFError, ValueError, OverflowError),
)
"""What zipfile raises for archives that are none."""


def check_program(path: Path) -> None:
    """Refuse a `.pt2` file that holds what no saved model needs."""
    try:
        with path.open("rb") as file:
            _check_archive(file, path)
    except _TORN as error:
        raise _refuse(path, f"it is no whole archive: {error}") from error


def _check_archive(file: BinaryIO, path: Path) -> None:
    _check_end(file, path)
    with zipfile.ZipFile(file) as archive:
        names = _list_members(archive, path)
        for name, member in names.items():
            if _JSON.fullmatch(name):
                _check_json(_read(archive, member, MAX_JSON_BYTES, path), name, path)
            elif _PICKLE.fullmatch(name):
                _check_pickle(_read(archive, member, MAX_PICKLE_BYTES, path), path)
            elif not _RAW.fullmatch(name):
                raise _refuse(path, f"it holds {name[:80]!a}, which a saved model does not need")
    if not any(name.startswith("models/") for name in names):
        raise _refuse(path, "it holds no model")


def _check_end(file: BinaryIO, path: Path) -> None:
    """Refuse an archive that others may read otherwise than we do.

    Its table of contents must end where the archive's end begins. Python looks for it there, torch
    where the end says that it is: in between, or in a comment, there could be another one.
    """
    at = file.seek(0, io.SEEK_END) - _END.size
    _, _, _, _, _, size, start, _ = found = _read_record(file, at, _END)
    place = at - _LOCATOR_64.size
    sign, _, stated, _ = _read_record(file, place, _LOCATOR_64)
    if sign == b"PK\6\7":
        at = place - _END_64.size
        sign, *_, size, start = _read_record(file, at, _END_64)
        if stated != at or sign != b"PK\6\6":
            raise _refuse(path, "its end is not where it says")
    elif _MOST_32 in (size, start):
        raise _refuse(path, "its end names no table of contents")
    if found[0] != b"PK\5\6" or found[-1] or start + size != at:
        raise _refuse(path, "its table of contents is not at its end")


def _read_record(file: BinaryIO, at: int, record: struct.Struct) -> tuple[Any, ...]:
    file.seek(max(at, 0))
    return record.unpack(file.read(record.size))


def _list_members(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """Members by their name below the folder that all of them share; none is compressed."""
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise _refuse(path, f"it holds {len(members):,} files")
    found: dict[str, zipfile.ZipInfo] = {}
    roots = set()
    for member in members:
        root, _, name = member.filename.partition("/")
        roots.add(root)
        words = member.filename.split("/")
        if ".." in words or not name or "\\" in member.filename or member.filename[:1] == "/":
            raise _refuse(path, f"it holds the path {member.filename[:80]!a}")
        if name in found:
            raise _refuse(path, f"it holds {name[:80]!a} twice")
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise _refuse(path, f"{name[:80]!a} is compressed or encrypted")
        found[name] = member
    if len(roots) > 1 or (members and min(each.header_offset for each in members)):
        raise _refuse(path, "it is more than one archive")
    return found


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, most: int, path: Path) -> bytes:
    if member.file_size > most:
        raise _refuse(path, f"{member.filename[:80]!a} has {member.file_size:,} bytes")
    return archive.read(member)


def _check_json(text: bytes, name: str, path: Path) -> None:
    try:
        content = msgspec.json.decode(text)
    except UNREADABLE as error:
        raise _refuse(path, f"{name} is no JSON: {error}") from error
    for key, value in _walk(content):
        if key == "expr_str":
            _check_expression(value, path)
        elif key == "range_constraints" and isinstance(value, dict):
            for symbol in value:
                _check_expression(symbol, path)
        elif key == "target" and isinstance(value, str):
            _check_target(value, path)
        elif key == "use_pickle" and value is not False:
            raise _refuse(path, f"{name} asks for a pickle")
        elif key in ("in_spec", "out_spec") and "__enum__" in str(value):
            raise _refuse(path, "the structure of its inputs imports modules")


def _walk(content: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, at any depth."""
    waiting = [content]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield from node.items()
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _check_target(target: str, path: Path) -> None:
    """Targets are ops, or arithmetic of Python; weights are targets of another kind, with dots."""
    if not target.startswith(("torch", "_operator", "math", "#")):
        return  # torch looks up nothing else, and refuses to call a text.
    if _FUNCTION.fullmatch(target):
        return
    if _HIGHER.fullmatch(target) and not _UNFIT.fullmatch(target):
        return
    match = _OP.fullmatch(target)
    if match is None:
        raise _refuse(path, f"its graph calls {target[:80]!a}, which is no op")
    if match[1] == "aten":
        try:
            check_signature(match[2], match[3])
        except NotKnown as error:
            raise _refuse(path, f"its graph calls {target[:80]!a}: {error}") from error


def _check_expression(text: object, path: Path) -> None:
    """Symbolic sizes are evaluated by torch: arithmetic of symbols, and nothing that explodes."""
    wrong = _refuse(path, f"it holds the expression {str(text)[:80]!a}")
    if not isinstance(text, str) or len(text) > MAX_EXPRESSION or "**" in text:
        raise wrong
    at = depth = num_growing = 0
    while at < len(text):
        match = _WORD.match(text, at)
        if match is None or (match[0][0].isupper() and match[0] not in _FUNCTIONS):
            raise wrong
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        num_growing += match[0] in _GROWING
        if depth > MAX_DEPTH or len(match[0]) > 40:
            raise wrong
        at = match.end()
    if num_growing > 1 or (num_growing and re.search(r"\d{4}", text)):
        raise wrong


def _check_pickle(content: bytes, path: Path) -> None:
    """The example inputs: an archive of its own, whose pickle makes tensors only."""
    _check_end(io.BytesIO(content), path)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = _list_members(archive, path)
        for name in members:
            if not _NESTED.fullmatch(name):
                raise _refuse(path, f"its example inputs hold {name[:80]!a}")
        if "data.pkl" not in members:
            raise _refuse(path, "its example inputs hold no data")
        try:
            found = list(pickletools.genops(archive.read(members["data.pkl"])))
        except Exception as error:  # pickletools raises what it likes.
            raise _refuse(path, f"its example inputs are no pickle: {error}") from error
    for opcode, argument, _ in found:
        is_foreign = opcode.name == "GLOBAL" and not _GLOBALS.fullmatch(str(argument))
        if is_foreign or opcode.name in _OPCODES:
            raise _refuse(path, f"its example inputs make {str(argument)[:80]!a}, no tensor")


def _refuse(path: Path, why: str) -> ModelFileError:
    return ModelFileError(
        f"{path} is refused: {why}.",
        remedy="A .pt2 file is code: open only your own, saved by torch.export.save with tensors"
        " for example inputs. Or give the model file that it was made from.",
    )
