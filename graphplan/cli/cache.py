"""`graphplan cache`: what is kept for the next command, and how to clear it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from graphplan.cachefolder import default_folder


@click.command(name="cache", epilog="Example: graphplan cache --clear")
@click.option("--clear", is_flag=True, help="Remove all captures and measurements.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(clear: bool, as_json: bool) -> None:
    """List the captures and measurements that are kept, with their sizes and ages."""
    folder = default_folder()
    entries = list_entries(folder)
    if clear:
        for path in entries:
            path.unlink(missing_ok=True)
    rows = [] if clear else [describe_entry(folder, path) for path in entries]
    if as_json:
        click.echo(
            json.dumps({"folder": str(folder), "removed": len(entries) * clear, "entries": rows})
        )
    elif clear:
        click.echo(f"{len(entries)} files removed from {folder}")
    else:
        print_entries(folder, rows)


def list_entries(folder: Path) -> list[Path]:
    """The files of the cache, those used last first; other files are left alone."""
    names = ("captures/*.json", "profile-*.json", "host-*.json")
    found = [path for name in names for path in folder.glob(name)]
    return sorted(found, key=lambda path: -path.stat().st_mtime)


def describe_entry(folder: Path, path: Path) -> dict[str, object]:
    """Name, size and age of one file."""
    found = path.stat()
    return {
        "kind": "capture" if path.parent.name == "captures" else path.name.partition("-")[0],
        "file": str(path.relative_to(folder)),
        "bytes": found.st_size,
        "age_s": round(max(0.0, time.time() - found.st_mtime)),
    }


def print_entries(folder: Path, rows: list[dict[str, object]]) -> None:
    """The entries as a table."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("kind", "file", "kB", "used", box=None, pad_edge=False, header_style="bold")
    table.columns[2].justify = table.columns[3].justify = "right"
    for row in rows:
        age = int(str(row["age_s"]))
        used = (
            f"{age // 86400} d ago" if age >= 86400 else f"{age // 3600} h {age // 60 % 60} min ago"
        )
        kilobytes = f"{int(str(row['bytes'])) / 1e3:,.0f}"
        table.add_row(str(row["kind"]), str(row["file"]), kilobytes, used)
    total = sum(int(str(row["bytes"])) for row in rows)
    console.print(table)
    console.print(f"{len(rows)} files, {total / 1e6:,.1f} MB in {folder}")
