"""Attack every reader of files: made by hand, and by mutation.

    python tools/attack.py --count 20000 --seed 0

Every case runs in a fork of a warmed process under an audit hook. It may be valid or refused with a
remedy. A finding is anything else: code that runs, a file written outside of the case's folder, a
traceback, control characters on the terminal, ten seconds of processor time, a gigabyte above the
start, a process that dies. A mutant that loads is used as users would: plans are judged, simulated,
shown and exported, graphs are searched and measured, checkpoints are read whole. Exit code 1 when
anything was found.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib
import json
import math
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
import networkx
import torch
from torch.fx.operator_schemas import get_signature_for_torch_op

from graphplan.cost.measure import Effort, measure_table
from graphplan.cost.tomlfile import list_fields
from tools.attack_cases import check_marker, list_attacks, try_file
from tools.attack_kinds import COVERED, ROOT, Reader
from tools.attack_readers import command, list_readers, load_program
from tools.attack_watch import Case, Outcome, list_lines, run_cases
from tools.mutate import mutate

VERDICTS = ("valid", "refused", "acted", "traceback", "escapes", "hang", "memory", "died")


def hurry() -> None:
    """Measure as little as possible: what is measured does not matter here."""
    quick = Effort(warm_up=0, min_repeats=1, max_repeats=1, budget_s=0.0, patience=0.0)
    defaults: Any = measure_table.__kwdefaults__
    defaults |= {"effort": quick, "step_effort": quick, "rounds": 1}
    torch.set_num_threads(1)


def warm_up(readers: Sequence[Reader], folder: Path) -> None:
    """Read and use every seed once, and a refused file, so that all is imported and compiled."""
    for number, reader in enumerate(readers):
        for text in (*reader.seeds, b"{}"):
            place = folder / f"warm-{number}-{len(text)}"
            for run in (reader.read, *reader.uses, *reader.searches):
                reader.place(place, text)
                try:
                    run(place)
                except Exception as error:  # A refusal, which is looked at in the cases.
                    str(error)
    for op in map(_find_op, torch._C._dispatch_get_all_op_names()):
        with contextlib.suppress(Exception):  # Some have two arguments of one name.
            get_signature_for_torch_op(op)
    graph = next(reader for reader in readers if reader.kind == "graph")
    graph.place(folder, graph.seeds[0])
    for memory in ("1KB", "20KB"):
        limits = ("--memory", memory, "--gpus", "2", "--planner", "chain", "-o", "{}/none.json")
        command("search", "{}/graph.json", "--no-baselines", *limits)(folder)
    for name in ("cp437", "utf_16_be", "utf_16_le", "utf_32_be", "utf_32_le"):
        importlib.import_module(f"encodings.{name}")  # For names in archives, and for mutants.
    for kind in _list_records(msgspec.Struct):
        list_fields(kind)
    with contextlib.suppress(networkx.NetworkXNoCycle):  # networkx makes functions when called.
        networkx.find_cycle(networkx.DiGraph([(0, 1)]))
    pt2 = next(reader for reader in readers if reader.kind == "pt2")
    pt2.place(folder, pt2.seeds[0])
    load_program(folder)


def _list_records(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """All kinds of records that are known by now."""
    for each in kind.__subclasses__():
        if each.__struct_fields__:
            yield each
        yield from _list_records(each)


def _find_op(name: str) -> Any:
    """torch makes a signature of every op that it sees, and compiles its own text for that."""
    library, _, rest = name.partition("::")
    kind, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops, library), kind, None) if library == "aten" else None
    return getattr(found, overload or "default", None)


def list_mutants(readers: Sequence[Reader], count: int, seed: int) -> list[Case]:
    """So many mutated files, each with one of the things that users do with its kind."""
    weighted = [reader for reader in readers for _ in range(reader.share)]
    return [_make_mutant(weighted[i % len(weighted)], i, seed) for i in range(count)]


def _make_mutant(reader: Reader, number: int, seed: int) -> Case:
    def run(folder: Path) -> str | None:
        rng = random.Random(f"{seed}-{number}")
        text = mutate(rng, rng.choice(reader.seeds))
        uses = reader.uses if reader.kind == "plan" or not reader.uses else (reader.pick_use(rng),)
        return try_file(reader._replace(uses=uses), text, folder)

    return check_marker(f"mutant {number}", reader.kind, run)


def count_verdicts(
    cases: Sequence[Case], outcomes: Sequence[Outcome]
) -> dict[str, collections.Counter[str]]:
    """Outcomes by kind of file."""
    found: dict[str, collections.Counter[str]] = {}
    for outcome in outcomes:
        case = cases[outcome.case]
        found.setdefault(case.kind, collections.Counter())[outcome.verdict] += 1
    return found


def format_counts(title: str, counts: dict[str, collections.Counter[str]]) -> str:
    """A table in Markdown, with its sums."""
    rows = {**counts, "all": sum(counts.values(), collections.Counter())}
    lines = [f"| {title} | {' | '.join(VERDICTS)} |", "|---" * (len(VERDICTS) + 1) + "|"]
    for kind, found in rows.items():
        cells = [f"{found[verdict]:,}" for verdict in VERDICTS]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def format_coverage(seen: set[tuple[str, int]]) -> str:
    """Lines inside of functions that were executed, by module, and functions without any."""
    lines = ["| module | lines | executed | share | never entered |", "|---|---|---|---|---|"]
    total = done = 0
    for name in sorted(COVERED):
        functions = list_lines(str(ROOT / name))
        own = set().union(*functions.values())
        hit = {line for file, line in seen if file == str(ROOT / name)} & own
        left = ", ".join(
            f"`{each}`" for each, inner in functions.items() if inner and not inner & hit
        )
        if own:
            share = f"{len(hit) / len(own):.0%}"
            lines.append(f"| {name} | {len(own)} | {len(hit)} | {share} | {left} |")
        total, done = total + len(own), done + len(hit)
    lines.append(f"| all | {total:,} | {done:,} | {done / max(1, total):.0%} | |")
    return "\n".join(lines)


def list_findings(cases: Sequence[Case], outcomes: Sequence[Outcome]) -> list[str]:
    """Each different finding once."""
    found: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.is_finding:
            case = cases[outcome.case]
            key = f"{case.kind} {outcome.verdict} {outcome.detail.splitlines()[-1:]}"
            found.setdefault(key, f"{case.kind}, {case.name}: {outcome.verdict}\n{outcome.detail}")
    return list(found.values())


def attack(
    count: int,
    seed: int,
    folder: Path,
    *,
    trace: bool = True,
    most_uses: int | None = None,
    minutes: float = math.inf,
) -> dict[str, Any]:
    """Run everything; tables and findings. `most_uses` keeps a short run to the first uses."""
    until_s = time.monotonic() + 60 * minutes
    hurry()
    readers = list(list_readers(folder))
    if most_uses is not None:
        readers = [reader.hurry()._replace(uses=reader.uses[:most_uses]) for reader in readers]
    warm_up(readers, folder)
    attacks = list(list_attacks({reader.kind: reader for reader in readers}))
    mutants = list_mutants(readers, count, seed)
    files = [str(ROOT / name) for name in COVERED] if trace else []
    by_hand, _ = run_cases(attacks, folder / "hand")
    seen: set[tuple[str, int]] = set()
    if trace:  # Once more for the lines alone: a trace makes slow cases count as hangs.
        quick = list(list_attacks({reader.kind: reader.hurry() for reader in readers}))
        seen = run_cases(quick, folder / "lines", files=files, traced=1)[1]
    mutated, more = run_cases(mutants, folder / "mutants", files=files, until_s=until_s)
    return {
        "attacks": count_verdicts(attacks, by_hand),
        "mutants": count_verdicts(mutants, mutated),
        "findings": list_findings(attacks, by_hand) + list_findings(mutants, mutated),
        "coverage": format_coverage(seen | more) if trace else "",
    }


def main() -> int:
    """Print the tables and what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=20_000, help="mutated files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no more after them")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = attack(options.count, options.seed, Path(folder), minutes=options.minutes)
    if options.json:
        print(json.dumps(found))
        return 1 if found["findings"] else 0
    spent = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    for key in ("attacks", "mutants"):
        number = sum(sum(each.values()) for each in found[key].values())
        print(f"{number:,} {key}:\n\n{format_counts('kind', found[key])}\n")
    print(f"Executed lines of the readers:\n\n{found['coverage']}\n")
    print(f"{spent:.0f} s of processor time, {time.perf_counter() - start:.0f} s in all")
    print("\n".join(["", *found["findings"]]))
    return 1 if found["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
