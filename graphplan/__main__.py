"""`python -m graphplan` and the `graphplan` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from graphplan.cli.main import run_command

    sys.exit(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
