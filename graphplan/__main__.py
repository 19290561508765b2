"""`python -m graphplan` and the `graphplan` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from graphplan.cli.main import run_command

        code = run_command(sys.argv[1:])
    except KeyboardInterrupt:  # Before there was a command to interrupt.
        sys.stderr.write("Interrupted.\n")
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
