"""`python -m nearhint_daemon`: the same as `nearhintd`."""

from __future__ import annotations

from nearhint_daemon.cli import main

if __name__ == "__main__":
    main(prog_name="nearhintd")
