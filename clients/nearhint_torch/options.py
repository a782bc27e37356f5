"""What `torch.compile(options=...)` says to the backend; a warning tells what means nothing."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from nearhint_rules import expr as ex
from nearhint_torch.errors import InvalidOption

KNOWN = ("address", "names")


class OptionIgnored(UserWarning):
    """Something given to `torch.compile` means nothing to the backend; the model runs without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`address` is the daemon's (None: NEARHINT_ADDRESS), `names` map torch's sizes to the user's.

    An address that is none is left to the session, which says so and stays at T0: another daemon
    than the one that was meant is never asked.
    """

    address: str | None = None
    names: Mapping[str, str] = field(default_factory=dict[str, str])


def read_options(settings: Mapping[str, Any]) -> Options:
    """The options among what `torch.compile` hands to a backend: its `mode` and its `options`.

    What is unknown or means nothing is left out with an `OptionIgnored` that names it: a model
    runs all the same.

    >>> read_options({"options": {"names": {"L['x'].size()[0]": "rows"}}}).names
    {"L['x'].size()[0]": 'rows'}
    """
    given: Mapping[str, Any] = settings.get("options") or {}
    names, misnamed = _names(given.get("names"))
    for error in (*_unknown(settings, given), *misnamed):
        warnings.warn(error.report(), OptionIgnored, stacklevel=2)
    address = given.get("address")
    return Options(address=None if address is None else str(address), names=names)


def _unknown(settings: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[InvalidOption]:
    for name in settings:
        if name != "options":
            yield InvalidOption(name=name, problem="the backend has no such argument")
    for name in given:
        if name not in KNOWN:
            near = difflib.get_close_matches(str(name), KNOWN, n=1)
            meant = f"did you mean {near[0]!r}" if near else f"known: {', '.join(KNOWN)}"
            yield InvalidOption(name=f"options[{name!r}]", problem=f"no such option; {meant}")


def _names(given: object) -> tuple[dict[str, str], list[InvalidOption]]:
    """The names that can be used, and what is wrong with the others."""
    place = "options['names']"
    if given is None:
        return {}, []
    if not isinstance(given, Mapping):
        return {}, [InvalidOption(name=place, problem=f"give a mapping, not {given!r}")]
    names: dict[str, str] = {}
    wrong: list[InvalidOption] = []
    for source, name in cast("Mapping[object, object]", given).items():
        if not isinstance(source, str) or not isinstance(name, str):
            problem = f"{source!r}: {name!r} maps no text to a text"
            wrong.append(InvalidOption(name=place, problem=problem))
        elif not ex.SYMBOL_PATTERN.fullmatch(name):
            wrong.append(InvalidOption(name=place, problem=f"{name!r} is no identifier"))
        else:
            names[source] = name
    return names, wrong
