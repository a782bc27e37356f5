"""Polynomials of the C prelude's functions, by Horner's rule."""

from __future__ import annotations

from collections.abc import Sequence


def horner(into: str, at: str, coefficients: Sequence[float], *, dtype: str = "f32") -> str:
    """Statements that leave the polynomial (lowest power first) in `into`, declared before."""
    numbers = [f"splat_{dtype}({each!r}{'f' if dtype == 'f32' else ''})" for each in coefficients]
    lines = [f"    {into} = {numbers[-1]};\n"]
    lines += [f"    {into} = mad_{dtype}({into}, {at}, {each});\n" for each in numbers[-2::-1]]
    return "".join(lines)
