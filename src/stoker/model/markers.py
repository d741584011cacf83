"""Markers: what stands in a draft for a value that is not known yet.

`PREVIOUS` is the result of the job before it in its chain, `RESULTS` the list of the results of its group's members.
A payload has the name of the marker where the value belongs, and the options say where that is (`Options.previous`,
`Options.results`). A place is the name of an argument, or `*` and a number for a positional one. What an operator wrote
over a marker meanwhile stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn

import msgspec
from msgspec import Raw

from stoker.model.errors import InvalidInput

REST: Final = "*"
"""The key of *args in a payload; no parameter can have this name."""


class Marker:
    """Stands for a value that a draft gets later; it cannot be used as a value."""

    __slots__ = ("meaning", "name")

    def __init__(self, name: str, meaning: str) -> None:
        self.name = name
        self.meaning = meaning

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> NoReturn:
        why = f"stands for {self.meaning}, which is not known yet: no key or text can be made of it"
        raise InvalidInput(self.name, self, why)

    def __format__(self, spec: str) -> str:
        return str(self)

    def __getattr__(self, name: str) -> NoReturn:
        if name in Marker.__slots__:  # of one that is being copied
            raise AttributeError(name)
        raise AttributeError(f"{self.name} {self.known_later}; got {self.name}.{name}", name=name, obj=self)

    def _refuse(self, *_: object) -> NoReturn:
        raise InvalidInput(self.name, self, self.known_later)

    def __bool__(self) -> bool:
        return True

    __getitem__ = __iter__ = __len__ = __int__ = __float__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __or__ = __ror__ = _refuse

    @property
    def known_later(self) -> str:
        """Why nothing can be made of it here, and where it can."""
        whole = f"give it whole, as in task.draft({self.name}), and take what you need in the handler"
        return f"stands for {self.meaning} and has no value yet; {whole}"

    @property
    def misplaced(self) -> str:
        """Why it cannot be inside another value."""
        return f"{self.name} stands for a whole argument; it cannot be inside another value"


PREVIOUS: Final = Marker("PREVIOUS", "the result of the job before it")
"""An argument of a draft in a chain: the result of the job before it takes its place."""
RESULTS: Final = Marker("RESULTS", "the results of a group's members")
"""An argument of a group's callback: the results of all members take its place, in their order."""

_read = msgspec.json.Decoder(dict[str, Raw] | list[Raw] | None).decode
_read_list = msgspec.json.Decoder(list[Raw]).decode
_write = msgspec.json.Encoder().encode


STANDING: Final = frozenset(_write(marker.name) for marker in (PREVIOUS, RESULTS))
"""What a payload has where a marker stands."""


def places(named: Iterable[tuple[str, Any]], marker: Marker) -> tuple[str, ...]:
    """Where a marker stands among arguments by name; those of `*args` are a sequence under the name `REST`."""
    found: list[str] = []
    for name, value in named:
        if value is marker:
            found.append(name)
        elif name == REST:
            found += positions(value, marker)
    return tuple(found)


def unmarked(value: Any) -> Any:
    """The value, or the name of a marker, which stands for it in a payload."""
    return value.name if isinstance(value, Marker) else value


def is_marked(values: Iterable[Any]) -> bool:
    """Is one of these a marker?"""
    return any(isinstance(value, Marker) for value in values)


def positions(values: Sequence[Any], marker: Marker) -> tuple[str, ...]:
    """Where a marker stands among positional arguments."""
    return tuple(f"{REST}{n}" for n, value in enumerate(values) if value is marker)


def fill(payload: bytes, where: Iterable[str], marker: Marker, value: bytes) -> bytes:
    """The payload with the JSON of a value in these places, as far as the marker still stands there.

    Every other byte of an argument stays as it is.
    """
    try:
        parts = _read(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return payload  # the decoder says what is wrong
    standing, filling = _write(marker.name), Raw(value)
    named = parts if isinstance(parts, dict) else {}
    rest = parts if isinstance(parts, list) else _read_list(named[REST]) if REST in named else []
    for place in where:
        if place.startswith(REST):
            n = int(place[1:])
            if n < len(rest) and bytes(rest[n]) == standing:
                rest[n] = filling
        elif bytes(named.get(place, b"")) == standing:
            named[place] = filling
    if isinstance(parts, dict) and REST in parts:
        parts[REST] = Raw(_write(rest))
    return _write(parts)


def stands(payload: bytes, where: Sequence[str], marker: Marker) -> bool:
    """Does the marker still stand in one of these places?"""
    return fill(payload, where, marker, b"null") != fill(payload, where, marker, _write(marker.name))
