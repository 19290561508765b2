"""The `graphplan` command: sub-commands loaded when they are called, errors turned into exit codes.

Exit codes: 0 done, 1 no feasible plan or check failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback

import click

import graphplan
from graphplan.errors import GraphplanError, UnknownName
from graphplan.nouns.names import escape_hidden

COMMANDS: dict[str, str] = {
    "search": "Find the best pipeline plan for a model (plan.json).",
    "show": "Show a plan: summary, HTML page, Perfetto trace, figure.",
    "trace": "Capture a model as an op graph (graph.json).",
    "profile": "Measure or estimate what every op takes (table.json).",
    "learn": "Train a cost model on measured tables (cost.json).",
    "clusters": "List the known clusters and device types.",
    "check": "Check that a plan is legal, fits memory and cannot deadlock.",
    "simulate": "What a plan does on another cluster, batch or schedule.",
    "compare": "Every planner and schedule side by side.",
    "export": "Write a plan for another runtime.",
    "run": "Train a model under a plan, on this machine or under torchrun.",
    "compare-run": "Predicted against measured, by stage and task kind.",
    "doctor": "Whether this machine can run plans: devices, links, a training run.",
    "staleness": "Weight versions, delays and stable learning rates of a plan.",
    "cache": "Look at what is kept for the next command, or clear it.",
    "schema": "Print the JSON Schema of every file.",
}
"""Sub-commands with their one-line help. `name` lives in `graphplan/cli/<name>.py` as `command`."""


class LazyGroup(click.Group):
    """A group whose sub-commands are imported on use, so that `--help` never loads torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"graphplan.cli.{cmd_name.replace('-', '_')}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise UnknownName("command", args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    name="graphplan",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: graphplan search examples/mmt.py --gpus 8",
)
@click.version_option(graphplan.__version__, prog_name="graphplan")
@click.option("--debug", is_flag=True, help="Show Python tracebacks of errors.")
def command_line(debug: bool) -> None:
    """Cut PyTorch models of any shape into a graph of pipeline stages, and prove how good it is."""
    if debug:
        os.environ["GRAPHPLAN_DEBUG"] = "1"


def run_command(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    debug = "--debug" in arguments or bool(os.environ.get("GRAPHPLAN_DEBUG"))
    try:
        result = command_line.main(args=arguments, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("Interrupted.", err=True)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), 1
        )  # Where the rest goes that waits to be written.
        click.echo(f"Error: The output cannot be written: {error.strerror}.", err=True)
        return 1
    except GraphplanError as error:
        if debug:
            traceback.print_exc()
        click.echo(escape_hidden(f"Error: {error}"), err=True)
        return error.exit_code
    except RecursionError as error:
        if debug:
            traceback.print_exc()
        click.echo(f"Error: the input is nested too deeply ({error}).", err=True)
        return 2
