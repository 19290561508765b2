"""The import rules of docs/architecture.md hold."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "graphplan"
PASSES = {"partition", "schedule", "simulate", "referee", "staleness"}
TORCH_ALLOWED = ("frontend/", "cost/measure", "cost/learned", "export/torch_launcher")
LEVELS = dict.fromkeys(("nouns", "errors", "files", "jsontext", "jit", "cachefolder"), 0)
LEVELS |= {"cost": 1, "play": 1}
LEVELS |= dict.fromkeys((*PASSES, "coarsen", "frontend", "compare"), 2)
LEVELS |= dict.fromkeys(("report", "planner", "export", "schema", "captures"), 3)
LEVELS |= dict.fromkeys(("api", "cli"), 4)

FOLDERS = {
    "graphplan.partition": ({"dag", "bounds"}, {"maxload", "drafts"}, {"pipelines", "trees"}),
    "graphplan_runtime": (
        {"faults"},
        {"messages"},
        {"updates"},
        {"stages", "checkpoints"},
        {"streams"},
    ),
}
"""The folders of the two largest packages, lower ones first."""


@cache
def parse_file(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


@cache
def list_imports(path: Path, *, inside: bool = True) -> frozenset[str]:
    """Modules that a file imports, `inside` functions too; those for type checking do not count."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(parse_file(path).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.FunctionDef) and not inside:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif not isinstance(node, ast.expr):  # which holds no import
            waiting += ast.iter_child_nodes(node)
    return frozenset(found)


def part_of(module: str) -> str | None:
    """`graphplan.cost.model` -> `cost`."""
    names = module.split(".")
    return names[1] if names[0] == "graphplan" and len(names) > 1 else None


VERDICTS = {"check_parts", "check_plan", "check_program", "check_schedule", "check_stages"}
"""Functions of the referee that return a Verdict."""
FILES = sorted(ROOT.rglob("*.py"))
RUNTIME_FILES = sorted((ROOT.parent / "runtime").rglob("*.py"))
OUR_FILES = [*FILES, *RUNTIME_FILES, *sorted((ROOT.parent / "tools").rglob("*.py"))]
LONG_FUNCTIONS = {
    "graphplan/play/player.py:_play": "the event loop, compiled",
    "tools/maxload/cover.py:reach_downsets": "compiled, as one loop",
    "tools/maxload/anneal.py:anneal_labels": "compiled, as one loop",
    "graphplan/cost/measure.py:measure_table": "twelve options with their meaning",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    """A file imports only its own part or lower ones; passes do not import each other."""
    own = part_of(".".join(("graphplan", *path.relative_to(ROOT).with_suffix("").parts)))
    assert own in LEVELS or own in ("__init__", "__main__"), f"{own} has no level"
    for module in list_imports(path):
        other = part_of(module)
        if other in LEVELS and own in LEVELS and other != own:  # not names such as __version__
            assert LEVELS[other] <= LEVELS[own], f"{own} imports {module}"
            assert not {own, other} <= PASSES, f"the pass {own} imports the pass {other}"
            assert not (own == "referee" and other != "nouns" and other != "errors"), module


@pytest.mark.parametrize("package", FOLDERS)
def test_folders_import_lower_ones(package: str) -> None:
    """Inside a package, too, imports point one way."""
    root = ROOT.parent / package.replace("graphplan_runtime", "runtime").replace(".", "/")
    level = {name: i for i, names in enumerate(FOLDERS[package]) for name in names}
    assert set(level) == {path.parent.name for path in root.glob("*/__init__.py")}
    for path in root.glob("*/*.py"):
        for module in list_imports(path):
            other = module.removeprefix(f"{package}.").split(".")[0]
            if module.startswith(f"{package}.") and other in level:
                own = path.parent.name
                assert other == own or level[other] < level[own], f"{path} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_torch_stays_where_it_belongs(path: Path) -> None:
    """torch is imported in the capture, the measuring and the learned model only."""
    if str(path.relative_to(ROOT)).startswith(TORCH_ALLOWED):
        return
    for module in list_imports(path):
        assert module.split(".")[0] not in {"torch", "torch_geometric"}, module


def name_module(path: Path) -> str:
    """`runtime/updates/weights.py` -> `graphplan_runtime.updates.weights`."""
    first, *rest = path.relative_to(ROOT.parent).with_suffix("").parts
    names = [{"runtime": "graphplan_runtime"}.get(first, first), *rest]
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def test_no_modules_import_each_other() -> None:
    """Not even in a circle; imports inside of functions do not count."""
    paths = {name_module(path): path for path in (*FILES, *RUNTIME_FILES)}
    graphlib.TopologicalSorter(
        {
            module: {each for each in list_imports(path, inside=False) if each in paths} - {module}
            for module, path in paths.items()
        }
    ).prepare()


@pytest.mark.parametrize("path", OUR_FILES, ids=lambda path: str(path.relative_to(ROOT.parent)))
def test_files_are_short_and_introduced(path: Path) -> None:
    """No file has over 400 lines, and each starts with a docstring."""
    assert path.read_text().count("\n") <= 400
    assert ast.get_docstring(parse_file(path))


def test_all_packages_are_installed() -> None:
    """A folder that pyproject.toml does not name is missing in a wheel, and only there."""
    listed = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["tool"]["setuptools"]
    paths = [*(path for path in FILES if path.name == "__init__.py")]
    paths += [path for path in RUNTIME_FILES if path.name == "__init__.py"]
    assert {name_module(path) for path in paths} <= set(listed["packages"])


def test_long_functions_have_a_reason() -> None:
    """Over 50 lines are an exception that is listed with why."""
    lengths = {
        f"{path.relative_to(ROOT.parent)}:{node.name}": node.end_lineno - node.lineno + 1
        for path in OUR_FILES
        for node in ast.walk(parse_file(path))
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None
    }
    assert {name for name, length in lengths.items() if length > 50} <= set(LONG_FUNCTIONS)


def test_the_product_does_not_know_the_laboratory() -> None:
    """Nothing that is installed imports the tools or the tests."""
    for path in (*FILES, *RUNTIME_FILES):
        assert not {"tools", "tests"} & {name.split(".")[0] for name in list_imports(path)}, path


def test_the_planner_does_not_know_the_runtime() -> None:
    """graphplan never imports graphplan_runtime, except to start it from the command line."""
    for path in FILES:
        if "cli" not in path.parts:
            names = list_imports(path)
            assert not any(name.startswith("graphplan_runtime") for name in names), path


def test_help_loads_neither_torch_nor_solvers() -> None:
    """`graphplan --help` stays quick because it imports nothing heavy."""
    code = (
        "import sys; from graphplan.cli.main import run_command; run_command(['--help']);"
        "heavy = {'torch', 'numpy', 'numba', 'networkx', 'ortools'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "trace" in done.stdout


def list_dropped(tree: ast.AST) -> list[int]:
    """Lines that ask the referee and do not look at its verdict, unless an error is expected."""
    expected = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.With) and "raises" in ast.dump(node.items[0].context_expr)
        for inner in ast.walk(node)
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id in VERDICTS
        and node not in expected
    ]


def test_tests_look_at_the_verdicts_that_they_ask_for() -> None:
    """`check_stages(...)` alone cannot fail: it returns what is wrong."""
    assert list_dropped(ast.parse("check_parts(problem, answer)")) == [1]
    for path in (ROOT.parent / "tests").rglob("*.py"):
        assert not list_dropped(parse_file(path)), path
