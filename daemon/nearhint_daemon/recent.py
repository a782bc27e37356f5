"""What was used last: results that are kept for the next who asks, within a limit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class Recent(Generic[KeyT, ValueT]):
    """Values by key. Where they weigh more than `limit`, those go that were unused longest.

    `weigh` says what a value weighs: without it 1, so that `limit` is their number. The value that
    was used last is kept whatever it weighs.

    >>> recent = Recent[str, int](2)
    >>> [recent.keep(key, value) for key, value in {"one": 1, "two": 2}.items()]
    [1, 2]
    >>> recent.get("one"), recent.keep("three", 3), recent.get("two")
    (1, 3, None)
    """

    def __init__(self, limit: int, *, weigh: Callable[[ValueT], int] = lambda _: 1) -> None:
        self.weight = 0
        self._limit = limit
        self._weigh = weigh
        self._values: OrderedDict[KeyT, ValueT] = OrderedDict()

    def get(self, key: KeyT) -> ValueT | None:
        """The value, which is used by this; None where it is not kept."""
        found = self._values.get(key)
        if found is not None:
            self._values.move_to_end(key)
        return found

    def keep(self, key: KeyT, value: ValueT) -> ValueT:
        """Keeps a value in place of what the key had, and returns it."""
        self.drop(key)
        self._values[key] = value
        self.weight += self._weigh(value)
        while len(self._values) > 1 and self.weight > self._limit:
            self.drop(next(iter(self._values)))
        return value

    def drop(self, key: KeyT) -> None:
        """Keeps it no longer."""
        dropped = self._values.pop(key, None)
        if dropped is not None:
            self.weight -= self._weigh(dropped)

    def clear(self) -> None:
        """Keeps nothing."""
        self._values.clear()
        self.weight = 0

    def values(self) -> Iterable[ValueT]:
        """All that is kept, what was unused longest first."""
        return self._values.values()

    def __contains__(self, key: KeyT) -> bool:
        """Whether it is kept; that is no use of it."""
        return key in self._values

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._values)
