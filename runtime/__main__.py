"""`python -m graphplan_runtime`: one rank, started by `graphplan run` or by torchrun.

`graphplan run` passes its options as one JSON object; by hand, and under torchrun, the arguments
are those of `graphplan run`.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run this rank and exit with its code."""
    arguments = sys.argv[1:]
    if len(arguments) == 1 and arguments[0].startswith("{"):
        import msgspec

        from graphplan_runtime.options import RunOptions
        from graphplan_runtime.worker import run_rank

        run_rank(msgspec.json.decode(arguments[0], type=RunOptions))
        return
    from graphplan.cli.main import run_command

    sys.exit(run_command(["run", *arguments]))


if __name__ == "__main__":
    main()
