"""`nearhint`, and `python -m nearhint`: interrupted while loading, it says so in a line."""

from __future__ import annotations

import sys


def main() -> None:
    """Loads the command line, and runs it."""
    try:
        from nearhint.cli import main as command

        command(prog_name="nearhint")
    except KeyboardInterrupt:
        from nearhint.exit_codes import ExitCode

        sys.stderr.write("nearhint: interrupted\n")
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()
