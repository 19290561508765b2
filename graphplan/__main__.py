"""`python -m graphplan` and the `graphplan` command."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn


def main() -> None:
    """Run the command line and exit with its code."""
    heard: list[int] = []

    def interrupt(number: int, frame: object) -> NoReturn:
        heard.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # Else it is ignored.
        signal.signal(signal.SIGINT, interrupt)
    try:
        from graphplan.cli.main import run_command

        code = run_command(sys.argv[1:])
    except (KeyboardInterrupt, ImportError) as error:  # Before there was a command to interrupt.
        # torch swallows the interrupt while it loads numpy; then numpy cannot be loaded again.
        if isinstance(error, ImportError) and not heard:
            raise
        sys.stderr.write("Interrupted.\n")
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
