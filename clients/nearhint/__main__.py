"""`python -m nearhint`: the same as `nearhint`."""

from __future__ import annotations

from nearhint.cli import main

if __name__ == "__main__":
    main(prog_name="nearhint")
