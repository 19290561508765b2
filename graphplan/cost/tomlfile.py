"""Strict TOML files: a typed record from text, with the line, the field and an example on error."""

from __future__ import annotations

import functools
import re
import tomllib
import typing
from typing import Any, TypeVar

import msgspec

from graphplan.errors import InvalidFile
from graphplan.nouns.names import has_hidden

T = TypeVar("T")
MAX_CHARACTERS = 1 << 20
MAX_LINE = 10_000
"""tomllib takes the square of the length of a dotted key."""
Path = tuple[str | int, ...]
"""Keys and positions that lead to a field: ("nodes", 0, "link")."""

_SYNTAX = re.compile(r"(.*) \(at line (\d+), column \d+\)")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`")
_MISSING = re.compile(r"Object missing required field `(.*?)`")
_HEADER = re.compile(r"\s*(\[\[?)\s*(.*?)\s*\]\]?\s*(?:#.*)?$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_KEY_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


def parse_toml(text: str, *, name: str, example: str) -> dict[str, Any]:
    """The plain content of a TOML file; bad syntax is an error with its line.

    tomllib raises plain errors for numbers of thousands of digits and for very deep nesting.
    """
    lines = text.splitlines()
    if len(text) > MAX_CHARACTERS or max(map(len, lines), default=0) > MAX_LINE:
        raise bad_field(name, None, None, f"has lines of over {MAX_LINE} characters", example)
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        match = _SYNTAX.fullmatch(str(error))
        line, what = (int(match[2]), match[1]) if match else (text.count("\n") + 1, str(error))
        raise bad_field(name, line, None, f"is not valid TOML: {what}", example) from error
    if has_hidden(_join_texts(content)):
        raise bad_field(name, None, None, "has control characters in a text", example)
    return content


def _join_texts(content: Any) -> str:
    """All texts of a file's content, keys included, one after the other."""
    waiting: list[Any] = [content]
    found: list[str] = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            found += node.keys()
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
        elif isinstance(node, str):
            found.append(node)
    return "".join(found)


def convert_toml(
    content: object, kind: type[T], text: str, *, name: str, example: str, path: Path = ()
) -> T:
    """The part of a file's content at `path` as a record; a bad field is an error that names it."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        field = path + _parse_path(where.rstrip("`"))
        unknown = _UNKNOWN.fullmatch(what)
        if unknown:
            field += (unknown[1],)
            known = ", ".join(f.encode_name for f in _fields_at(kind, field[len(path) : -1]))
            what = "is not known here" + (f"; known: {known}" if known else "")
        elif missing := _MISSING.fullmatch(what):
            what = f"lacks the field {missing[1]!r}"
        else:
            what = f"is {_value_at(content, field[len(path) :])!r}: {what[0].lower()}{what[1:]}"
        raise bad_field(name, find_line(text, field), field, what, example) from error


def bad_field(
    name: str, line: int | None, field: Path | None, what: str, example: str
) -> InvalidFile:
    """The error for one field of one file."""
    place = f"{name}, line {line}" if line else name
    subject = f"field {format_path(field)!r} " if field else "the file "
    return InvalidFile(f"{place}: {subject}{what}.", remedy=f"Example:\n{_indent(example)}")


def format_path(path: Path) -> str:
    """The field as one would write it: `nodes[0].link.scope`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.lstrip(".")


def find_line(text: str, path: Path) -> int | None:
    """Number of the line that sets the field, or of the nearest table around it."""
    best, best_depth = None, 0
    for number, at in _walk_lines(text):
        depth = _shared_depth(at, path)
        if depth > best_depth and depth == len(at):
            best, best_depth = number, depth
    return best


def _walk_lines(text: str) -> list[tuple[int, Path]]:
    """(line number, path) of every table header and every key; inline tables count as their key."""
    found: list[tuple[int, Path]] = []
    table: Path = ()
    count_by_array: dict[Path, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.fullmatch(line)
        if header and "=" not in header[2].partition("#")[0]:
            table = _locate(_split_key(header[2]), count_by_array, opens=header[1] == "[[")
            found.append((number, table))
        elif match := _KEY.match(line):
            found.append((number, table + _split_key(match[1])))
    return found


def _locate(keys: Path, count_by_array: dict[Path, int], *, opens: bool) -> Path:
    """The path of a header: positions are added after every array of tables it passes."""
    path: Path = ()
    for i, key in enumerate(keys):
        path += (key,)
        if opens and i == len(keys) - 1:
            count_by_array[path] = count_by_array.get(path, 0) + 1
        if path in count_by_array:
            path += (count_by_array[path] - 1,)
    return path


def _split_key(text: str) -> Path:
    return tuple(part.strip("\"'") for part in _KEY_PART.findall(text))


def _parse_path(text: str) -> Path:
    return tuple(
        key if key else int(position) for key, position in _STEP.findall(text.replace("[...]", ""))
    )


def _value_at(content: Any, path: Path) -> Any:
    for step in path:
        content = content[step]
    return content


def _shared_depth(a: Path, b: Path) -> int:
    depth = 0
    while depth < min(len(a), len(b)) and a[depth] == b[depth]:
        depth += 1
    return depth


def _fields_at(kind: Any, path: Path) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Fields of the record that a path leads to, () when it leads through a union or a mapping."""
    for step in path:
        if isinstance(step, int):
            kind = typing.get_args(kind)[0]
        else:
            kind = next((f.type for f in _fields_at(kind, ()) if f.encode_name == step), None)
        if typing.get_origin(kind) is typing.Annotated:
            kind = typing.get_args(kind)[0]
    is_record = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return list_fields(kind) if is_record else ()


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines())


@functools.cache
def list_fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The fields of a record, whose annotations Python evaluates once."""
    return msgspec.structs.fields(kind)
