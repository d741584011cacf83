"""Checks JSON from outside: refuses what any engine would refuse, change or fail on.

Called by `to_json` for raw payloads (enqueued by name, over REST) and for encoded values that look suspicious. The rule
it keeps: the verdict depends on the bytes alone, so it is the same on every engine, and whatever the input, the work
is linear and never recursive. The parser recurses, therefore depth is measured before anything is parsed.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NoReturn

from stoker.model.errors import InvalidPayload, PayloadTooLarge

PAYLOAD_LIMIT: Final = 1024 * 1024
"""Bytes of a payload or a result."""

DEPTH_LIMIT: Final = 64
"""Lists and objects inside one another, the outermost included."""

TOO_DEEP: Final = f"is nested deeper than {DEPTH_LIMIT} levels"

DIGITS_LIMIT: Final = 4_300
"""Characters of an integer, sign included; beyond it Python and msgspec refuse to read one."""

# A string without its end swallows the rest: retrying from each quote inside it would make the scan quadratic.
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[\[{]|[\]}]', re.DOTALL)
_ESCAPE = re.compile(
    r"""\\(?: u[dD][89abAB][0-9a-fA-F]{2} \\u[dD][c-fC-F][0-9a-fA-F]{2}
          | (?P<half> u[dD][89a-fA-F][0-9a-fA-F]{2} )
          | (?P<nul> u0000 )
          | . )""",
    re.DOTALL | re.VERBOSE,
)


def check_json(data: bytes, field: str = "payload", limit: int = PAYLOAD_LIMIT, deepest: int = DEPTH_LIMIT) -> None:
    """Raise `InvalidPayload` unless every engine can store `data` unchanged."""
    if len(data) > limit:
        raise too_large(field, len(data), limit)
    try:
        text = data.decode()
        if depth(data, deepest) > deepest:
            raise ValueError(TOO_DEEP)
        if "\\u" in text:
            _check_escapes(text)
        _PARSER.decode(text)
    except UnicodeDecodeError as error:
        raise InvalidPayload(field, data, f"is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise InvalidPayload(field, data, f"is not JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:
        raise InvalidPayload(field, data, str(error)) from None


def depth(data: bytes, enough: int) -> int:
    """How deep `data` nests; stops counting one level beyond `enough`."""
    if data.count(b"[") + data.count(b"{") <= enough:
        return 0
    level = deepest = 0
    for token in _STRING_OR_BRACKET.finditer(data):
        match data[token.start()]:
            case 0x5B | 0x7B:
                level += 1
                if level > deepest:
                    deepest = level
                    if deepest > enough:
                        break
            case 0x5D | 0x7D:
                level -= 1
    return deepest


def too_large(field: str, size: int, limit: int) -> PayloadTooLarge:
    """The one wording for anything above a size limit."""
    why = f"is larger than {limit:,} bytes; keep the data elsewhere and pass a reference to it"
    return PayloadTooLarge(field, size, why)


def _check_escapes(text: str) -> None:
    """Refuse NUL and halves of surrogate pairs; an escape outside a string is left to the parser."""
    for escape in _ESCAPE.finditer(text):
        if escape.lastgroup == "nul":
            raise ValueError("contains a NUL character")
        if escape.lastgroup == "half":
            raise ValueError("contains half of a surrogate pair")


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"has the key {key!r} twice in one object")
        seen.add(key)


def _finite(literal: str) -> float:
    number = float(literal)
    if math.isinf(number):
        raise ValueError("contains a number beyond the range of a float")
    return number


def _whole(literal: str) -> int:
    if len(literal) > DIGITS_LIMIT:
        raise ValueError(f"contains an integer of more than {DIGITS_LIMIT:,} characters")
    return 0


def _constant(name: str) -> NoReturn:
    raise ValueError(f"contains {name}, which is not JSON")


_PARSER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_int=_whole, parse_constant=_constant)
