"""What the constructors of relays check: libraries that only some of them need, and timeouts."""

from __future__ import annotations

from importlib.util import find_spec

from stoker.model.errors import InvalidOption, StokerError
from stoker.model.time import SECOND, Seconds, span


def needs(relay: object, library: str, extra: str) -> None:
    """Raise where the relay is made if its library is not installed."""
    if find_spec(library) is None:
        name = type(relay).__name__
        raise StokerError(f"{name} needs the library {library}, which is not installed: pip install 'stoker[{extra}]'")


def seconds(timeout: Seconds) -> float:
    """A timeout as libraries take it."""
    found = span(timeout, "timeout") / SECOND
    if not found:
        raise InvalidOption("timeout", timeout, "must be longer than nothing")
    return found
