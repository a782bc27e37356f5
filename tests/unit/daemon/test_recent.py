"""What is kept of what was used last."""

from __future__ import annotations

from nearhint_daemon.recent import Recent


def test_what_was_unused_longest_goes_first() -> None:
    recent = Recent[str, int](3)
    for number, key in enumerate(("a", "b", "c")):
        recent.keep(key, number)
    assert recent.get("a") == 0
    recent.keep("d", 3)
    assert list(recent.values()) == [2, 0, 3]
    assert "b" not in recent


def test_a_look_is_no_use() -> None:
    recent = Recent[str, int](2)
    recent.keep("a", 0)
    recent.keep("b", 1)
    assert "a" in recent
    recent.keep("c", 2)
    assert "a" not in recent


def test_values_are_dropped_by_what_they_weigh() -> None:
    recent = Recent[str, str](10, weigh=len)
    recent.keep("first", "12345")
    recent.keep("second", "12345")
    assert (len(recent), recent.weight) == (2, 10)
    recent.keep("third", "1")
    assert list(recent.values()) == ["12345", "1"]
    assert recent.weight == 6


def test_the_newest_is_kept_whatever_it_weighs() -> None:
    recent = Recent[str, str](3, weigh=len)
    recent.keep("small", "1")
    assert recent.keep("large", "12345") == "12345"
    assert list(recent.values()) == ["12345"]


def test_a_key_that_is_kept_again_counts_once() -> None:
    recent = Recent[str, str](10, weigh=len)
    recent.keep("key", "12345")
    recent.keep("key", "12")
    assert (list(recent.values()), recent.weight) == (["12"], 2)


def test_what_was_cleared_weighs_nothing() -> None:
    recent = Recent[str, str](10, weigh=len)
    recent.keep("key", "12345")
    recent.clear()
    assert (len(recent), recent.weight, recent.get("key")) == (0, 0, None)
