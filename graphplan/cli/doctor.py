"""`graphplan doctor`: whether this machine can run plans, and what they can be planned with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphplan.errors import InvalidOption
from graphplan.files import encode_noun, write_bytes, write_noun

if TYPE_CHECKING:
    from graphplan.nouns.diagnosis import Finding

MOST_PROCESSES = 16
SIGNS = {"fine": "ok", "odd": "odd", "failed": "FAILED", "left out": "-"}


@click.command(
    name="doctor",
    epilog="Example: graphplan doctor --cluster here.toml && graphplan search model.py --cluster"
    " here.toml",
)
@click.option("--device", help="cpu or cuda; the accelerators if there are any.")
@click.option(
    "--ranks", type=click.IntRange(1), help="Devices to use.  [default: all; on a CPU, 2 processes]"
)
@click.option("-o", "--output", default="diagnosis.json", show_default=True, help="The report.")
@click.option("--cluster", metavar="FILE", help="Write the measured cluster, for --cluster.")
@click.option("--table", metavar="FILE", help="Write the times of the ops that were measured.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(
    device: str | None,
    ranks: int | None,
    output: str,
    cluster: str | None,
    table: str | None,
    as_json: bool,
) -> None:
    """Look at devices, kernels, links and a small training run, and say what is wrong.

    The report holds versions, names of devices and figures, nothing of yours: send it when you ask
    for help. Exit code 1 if something failed.
    """
    from graphplan.cost.measure import find_device
    from graphplan_runtime.doctor import Doctor, list_devices

    kind = device or find_device()
    count = ranks or (2 if kind == "cpu" else len(list_devices(kind)))
    most = MOST_PROCESSES if kind == "cpu" else len(list_devices(kind))
    if count > most:
        raise InvalidOption(
            f"{count} ranks are more than the {most} devices here.", remedy=f"Use --ranks {most}."
        )

    def tell(finding: Finding) -> None:
        if not as_json:
            click.echo(f"{SIGNS[finding.verdict]:7} {finding.about:9} {finding.text}")
            if finding.remedy:
                click.echo(f"{'':18}{finding.remedy}")

    doctor = Doctor(kind=kind, num_ranks=count, tell=tell)
    found = doctor.examine()
    write_noun(found, output)
    written = [output]
    if cluster and doctor.cluster_text:
        write_bytes(doctor.cluster_text.encode(), Path(cluster))
        written.append(cluster)
    if table and doctor.table is not None:
        write_noun(doctor.table, table)
        written.append(table)
    if as_json:
        click.echo(encode_noun(found).decode())
    else:
        click.echo(f"written: {', '.join(written)}")
    sys.exit(not found.is_well)
