"""`nearhintd`, and `python -m nearhint_daemon`: interrupted while loading, it says so in a line."""

from __future__ import annotations

import sys


def main() -> None:
    """Loads the command line, and runs it."""
    try:
        from nearhint_daemon.cli import main as command

        command(prog_name="nearhintd")
    except KeyboardInterrupt:
        from nearhint_daemon.exit_codes import ExitCode

        sys.stderr.write("nearhintd: interrupted\n")
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()
