"""A writer of indented C."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

_INDENT = "    "


class Writer:
    """Collects lines of C; `block` indents what is written inside it and closes the brace."""

    def __init__(self, *, depth: int = 0) -> None:
        self._lines: list[str] = []
        self._depth = depth

    def line(self, text: str = "") -> None:
        """Appends one line at the current depth."""
        self._lines.append(f"{_INDENT * self._depth}{text}" if text else "")

    @contextmanager
    def block(self, head: str = "", *, tail: str = "") -> Generator[None]:
        """`head {` ... `}tail` around what the `with` body writes."""
        self.line(f"{head} {{" if head else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line(f"}}{tail}")

    def text(self) -> str:
        """All lines, ending in a newline."""
        return "\n".join(self._lines) + "\n"
