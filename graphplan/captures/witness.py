"""The witness: sees what a capture reads while it runs, and whether it is still so.

Python reports opened files, imports, processes and connections to audit hooks; environment
variables are seen through `os.environ`. What a model does that cannot be repeated (it writes files,
starts processes, opens connections, lists folders) makes its capture one that is not kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import site
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from graphplan.captures.entry import Evidence

_REFUSED = (
    *("socket.connect", "socket.bind", "urllib.Request", "subprocess.Popen"),
    *("os.system", "os.exec", "os.fork", "os.posix_spawn"),
)
_LISTED = ("os.listdir", "os.scandir", "glob.glob", "os.walk")
SOFTWARE = ("TORCH", "PYTORCH", "CUDA", "HF_", "TRANSFORMERS_", "PYTHON", "ATEN_", "OMP_", "MKL_")
"""Environment variables of libraries, which read some when they are imported and set others: their
values at the start are part of the request."""
ALL_VARIABLES = "*"
"""Stands for the whole environment, where the user's code goes through it."""
_VOLATILE = {"_", "SHLVL", "OLDPWD", "PWD", "COLUMNS", "LINES"}
"""Variables of the shell, which tell nothing of the user's; the folder is part of the request."""
_MOST_FILE_BYTES = 64 << 20
_OURS = str(Path(__file__).resolve().parents[1])
_OUR_NAMES = ("__main__", "graphplan_profiles", "graphplan_runtime")
"""Modules that do not come from the model; the packages may lie in a developer's folders."""


_STANDARD = (sysconfig.get_paths()["stdlib"], os.path.realpath(sysconfig.get_paths()["stdlib"]))


def _library_folders() -> tuple[str, ...]:
    found = {*sysconfig.get_paths().values(), site.getusersitepackages(), *site.getsitepackages()}
    ends = (os.sep + "site-packages", os.sep + "dist-packages")
    found |= {entry for entry in sys.path if entry.endswith(ends)}
    own = {sysconfig.get_paths()[key] for key in ("scripts", "data")}
    return tuple(sorted(os.path.realpath(each) + os.sep for each in found - own))


_LIBRARIES = _library_folders()


def is_library_file(path: str) -> bool:
    """Whether a file came with Python or was installed."""
    return os.path.realpath(path).startswith(_LIBRARIES)


class Witness:
    """What was read from the start to the end of `watching`."""

    def __init__(self) -> None:
        self.opened: set[str] = set()
        self.imported: set[str] = set()
        self.variables: dict[str, str | None] = {}
        """As they were when they were first asked for: a library may set them then."""
        self.refusal: str | None = None
        """Why the capture cannot be kept."""
        self._started = time.time()
        stale = [name for name, module in list(sys.modules.items()) if _is_users(module)]
        if stale:
            self.refusal = f"{stale[0]} was imported before, maybe from an older file"

    def note(self, event: str, args: tuple[Any, ...]) -> None:
        """Take one report of Python's."""
        if event == "import":
            self.imported.add(str(args[0]))
        elif event == "open":
            self._note_open(*args)
        elif event.startswith(_REFUSED):
            self.refusal = f"it does {event}"
        elif event in _LISTED and _is_users_doing() and not _is_import_folder(str(args[0] or ".")):
            self.refusal = f"it lists {args[0]}"

    def _note_open(self, path: Any, mode: Any, flags: Any) -> None:
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, (str, os.PathLike)):
            return
        path = _absolute(os.fspath(path))
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        if path.endswith(".pyc"):
            with contextlib.suppress(ValueError):
                self.opened.add(importlib.util.source_from_cache(path))
        elif "__pycache__" in path or path.startswith("/dev/"):
            return
        elif writes:
            if _is_users_doing():
                self.refusal = f"it writes {path}"
        else:
            self.opened.add(path)

    def collect(self) -> Evidence | None:
        """All that was seen; None where it cannot be repeated or was not seen in time."""
        used = [module for name, module in list(sys.modules.items()) if name != "__main__"]
        paths = {path for module in used if (path := _source_of(module)) is not None}
        stamps = {path: stamp_file(path) for path in paths if _is_counted_library(path)}
        opened = {path for path in self.opened if not is_library_file(path)}
        files = {path for path in {*paths, *opened} if not is_library_file(path)}
        # The program that asks is read for tracebacks, but is no part of the model.
        files -= {_source_of(sys.modules["__main__"]) or ""}
        files = {path for path in files if not path.startswith((_OURS, "/proc/", "/sys/"))}
        if self.refusal is not None or any(map(self._cannot_be_hashed, files)):
            return None
        hashes = {path: hash_file(path) for path in sorted(files)}
        names = {name.rpartition(".")[2] for name in (*self.imported, *sys.modules)}
        tops = {name.partition(".")[0] for name in self.imported}
        sources = [Path(path) for path in files if path.endswith(".py")]
        speaks = any(b"argv" in source.read_bytes() for source in sources if source.is_file())
        return Evidence(
            files=hashes,
            stamps=stamps,
            folders=list_folders({str(Path(path).parent) for path in files}, names),
            names=tuple(sorted(names)),
            missing=tuple(sorted(name for name in tops if not can_find(name))),
            variables=self.variables,
            arguments=tuple(sys.argv) if speaks else None,
        )

    def _cannot_be_hashed(self, path: str) -> bool:
        """Whether a file is large, or may have been read before it was changed."""
        with contextlib.suppress(OSError):
            found = Path(path).stat()
            is_fresh = found.st_mtime > self._started - 0.02  # clocks of disks are coarse
            return is_fresh or found.st_size > _MOST_FILE_BYTES
        return False


_current: Witness | None = None
_is_hooked = False


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _current is not None and not event.startswith(("object.", "sys.", "marshal.", "compile")):
        try:
            _current.note(event, args)
        except Exception as error:  # What a hook raises would break the model's own call.
            _current.refusal = f"{event} cannot be understood: {error!r}"


@contextlib.contextmanager
def watching() -> Iterator[Witness]:
    """While it lasts, a witness sees what is read. Python's hooks cannot be removed again."""
    global _current, _is_hooked
    witness = Witness()
    kind = type(os.environ)
    originals = {name: getattr(kind, name) for name in ("__getitem__", "__iter__")}

    def find(self: Any, key: Any) -> Any:
        # Who goes through all variables reads none; libraries look for their own prefix so.
        is_listed = sys._getframe(1).f_code.co_name == "__iter__"
        if isinstance(key, str) and not is_listed and not key.startswith(SOFTWARE):
            witness.variables.setdefault(key, _hash_text(self._data.get(self.encodekey(key))))
        return originals["__getitem__"](self, key)

    def list_all(self: Any) -> Any:
        if _is_users_doing():
            witness.variables.setdefault(ALL_VARIABLES, hash_variable(ALL_VARIABLES))
        return originals["__iter__"](self)

    if not _is_hooked:
        sys.addaudithook(_audit)
        _is_hooked = True
    _current = witness
    setattr(kind, "__getitem__", find)  # noqa: B010
    setattr(kind, "__iter__", list_all)  # noqa: B010
    try:
        yield witness
    finally:
        _current = None
        for name, original in originals.items():
            setattr(kind, name, original)


def still_holds(evidence: Evidence) -> bool:
    """Whether everything that was read is as it was. Nothing is imported for it."""
    return (
        all(hash_variable(name) == seen for name, seen in evidence.variables.items())
        and (evidence.arguments is None or evidence.arguments == tuple(sys.argv))
        and all(hash_file(path) == seen for path, seen in evidence.files.items())
        and all(stamp_file(path) == seen for path, seen in evidence.stamps.items())
        and list_folders(set(evidence.folders), set(evidence.names)) == evidence.folders
        and not any(can_find(name) for name in evidence.missing)
    )


def hash_file(path: str) -> str | None:
    """Hash of a file's contents, None if it cannot be read; devices and pipes have no end."""
    try:
        is_file = Path(path).is_file()
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if is_file else None
    except (OSError, ValueError):
        return None


def stamp_file(path: str) -> str:
    """Size and time of change of a file."""
    try:
        found = Path(path).stat()
    except OSError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns}"


def hash_variable(name: str) -> str | None:
    """Hash of an environment variable, None if it is not set; values may be secrets."""
    if name == ALL_VARIABLES:
        held = sorted(os.environ._data.items())  # type: ignore[attr-defined]
        return _hash_text(repr([each for each in held if os.fsdecode(each[0]) not in _VOLATILE]))
    value = os.environ.get(name)
    return None if value is None else _hash_text(os.fsencode(value))


def _hash_text(text: str | bytes | None) -> str | None:
    if text is None:
        return None
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def list_folders(folders: set[str], names: set[str]) -> dict[str, tuple[str, ...]]:
    """What imports would find under these names in folders of the user and on the path."""
    wanted = {*folders, *(_absolute(entry) for entry in sys.path)}
    found = {}
    for folder in sorted(wanted):
        if is_library_file(folder + os.sep) or folder.startswith(_OURS):
            continue
        with contextlib.suppress(OSError):
            entries = sorted(each.name for each in Path(folder).iterdir())
            found[folder] = tuple(each for each in entries if each.partition(".")[0] in names)
    return found


def can_find(name: str) -> bool:
    """Whether a top-level module could be imported, or would be by looking for one inside of it."""
    try:
        return "." in name or name in sys.modules or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _absolute(path: str) -> str:
    """The path from the root, links as they are: what a link points to may change."""
    return str(Path.cwd() / path)


def _is_users_doing() -> bool:
    """Whether code outside of libraries asked for what Python reports."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path != __file__ and not path.startswith(("<frozen", *_STANDARD)):
            return not path.startswith(_OURS) and not is_library_file(path)
        frame = frame.f_back
    return False


def _source_of(module: Any) -> str | None:
    path = getattr(module, "__file__", None)
    return _absolute(path) if isinstance(path, str) and Path(path).is_file() else None


def _is_users(module: Any) -> bool:
    path = _source_of(module) if isinstance(module, ModuleType) else None
    if path is None or path.startswith(_OURS) or is_library_file(path):
        return False
    return module.__name__.partition(".")[0] not in _OUR_NAMES


def _is_counted_library(path: str) -> bool:
    """Files of the standard library and of torch count by their version."""
    real = os.path.realpath(path)
    is_torch = f"-packages{os.sep}torch{os.sep}" in real
    return is_library_file(path) and "-packages" in real and not is_torch


def _is_import_folder(path: str) -> bool:
    path = os.path.realpath(path)
    on_path = {os.path.realpath(entry or ".") for entry in sys.path}
    return path in on_path or is_library_file(path + os.sep) or _is_package(path)


def _is_package(path: str) -> bool:
    return any(
        path in map(os.path.realpath, getattr(module, "__path__", ()))
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType)
    )
