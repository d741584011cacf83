"""Python values to JSON that every engine accepts, and the types msgspec leaves to us.

Called by `signature` for arguments, payloads and results. The rule it keeps: a value that JSON would silently change is
refused. msgspec writes NaN as null, turns numbers used as keys into text and copies `Raw` unread, so the bytes alone
cannot be trusted; but most calls are made of plain values, and for those a look at the bytes is enough.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw

from stoker.codec.error_text import text_of
from stoker.codec.json_check import DEPTH_LIMIT, DIGITS_LIMIT, PAYLOAD_LIMIT, TOO_DEEP, check_json, too_large
from stoker.model.errors import InvalidPayload
from stoker.model.markers import Marker

_KEPT: Final = (bytes, bytearray, memoryview, datetime, date, time, timedelta, Decimal, UUID)
_LEAVES: Final[frozenset[type]] = frozenset({str, int, bool, type(None), *_KEPT})
PLAIN: Final = _LEAVES | {float}
BINARY: Final[frozenset[type]] = frozenset({bytes, bytearray, memoryview})
_NO_TEXT: Final = re.compile(r"Expected `(.+ \| )?str\b.*`, got `bytes`")
_TEXT: Final = frozenset({str})
_VALUE: Final = re.compile(r"(Invalid (?:enum )?value) .*?(?= - at|$)", re.DOTALL)
_OWN_CODE: Final = re.compile(r"'type': 'function-(before|wrap|plain)'")
_LONG_NEGATIVE: Final = re.compile(rb"-[0-9]{%d}" % DIGITS_LIMIT)

NOT_TEXT: Final = "a key must be text, as JSON requires"


# --- types that msgspec leaves to us ----------------------------------------------------------------------------


def _is_model(kind: Any) -> bool:
    """A pydantic model? If pydantic was never imported there are none, and it is not imported to find out."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def simplify(value: Any) -> Any:
    """Turn a value msgspec does not know into one that it does: models, and subclasses of plain types."""
    if _is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if value is None or isinstance(value, tuple | frozenset):  # msgspec knows these, except as keys
        raise TypeError(NOT_TEXT)
    if isinstance(value, Marker):
        raise TypeError(value.misplaced)
    raise TypeError(f"JSON has no form for {type(value).__qualname__}")


def revive(kind: type, value: Any) -> Any:
    """Build a value of a type msgspec does not know out of plain JSON."""
    if _is_model(kind):
        return kind.model_validate_json(_encode(value))  # type: ignore[attr-defined]
    raise TypeError(f"JSON cannot be read as {kind.__qualname__}")


def schema_of_model(kind: Any) -> Any:
    """The JSON Schema of what a pydantic model accepts; None for other types.

    Also None for a model with code of its own before a validation or in a serialization: what that code accepts, or
    writes, no schema says.
    """
    if not _is_model(kind) or _OWN_CODE.search(repr(kind.__pydantic_core_schema__)):
        return None
    return kind.model_json_schema()


_encode = msgspec.json.Encoder(enc_hook=simplify).encode


# --- values to bytes --------------------------------------------------------------------------------------------


def encode_value(
    value: Any, parts: Collection[Any], field: str, limit: int = PAYLOAD_LIMIT, binary: list[bool] | None = None
) -> bytes:
    """Encode `value`, made of `parts`, and check it; plain parts need only a look at the bytes.

    `binary` gets an entry if there are bytes in it, which JSON carries as base64.
    """
    try:
        data = _encode(value)
    except Exception as error:
        raise _refusal(error, value, field) from error
    if len(data) > limit:
        raise too_large(field, len(data), limit)
    plain = PLAIN.issuperset(map(type, parts)) and (b"null" not in data or _LEAVES.issuperset(map(type, parts)))
    if not plain:
        _examine(value, parts, data, field, limit, binary)
    elif binary is not None and not BINARY.isdisjoint(map(type, parts)):
        binary.append(True)
    if b"\\u0000" in data or (len(data) > DIGITS_LIMIT and _may_hold_long_integer(data)):
        check_json(data, field, limit)
    return data


def misplaced_bytes(value: Any, hint: Any) -> str | None:
    """Why `value` cannot be an argument of this type: it has bytes where the type wants text. None if it can."""
    kept: Any = tuple(BINARY)
    try:
        tree = msgspec.to_builtins(value, builtin_types=kept, str_keys=True, enc_hook=simplify)
        msgspec.convert(tree, hint, builtin_types=kept, str_keys=True, dec_hook=revive)
    except msgspec.ValidationError as error:
        text = str(error)
        if _NO_TEXT.search(text):
            return f"{text}. JSON has no bytes: give text, as in value.decode(), or declare the parameter as bytes"
    except Exception:  # noqa: BLE001, S110 - a type that only a worker can judge
        pass
    return None


def reason(error: BaseException) -> str:
    """The message of an error on one line, fit to be stored: without the value that is wrong."""
    pydantic, origin = sys.modules.get("pydantic"), error.__cause__ or error
    if pydantic is not None and isinstance(origin, pydantic.ValidationError):  # its own text quotes the input
        found = origin.errors(include_input=False, include_url=False, include_context=False)
        return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the value'}: {one['msg']}" for one in found)
    if isinstance(error, msgspec.ValidationError):
        return _VALUE.sub(r"\1", text_of(error, 1_000))
    return "; ".join(text_of(error, 1_000).split("\n")) or type(error).__name__


def _refusal(error: Exception, value: Any, field: str) -> InvalidPayload:
    """Why `value` could not be encoded: msgspec's own reasons, and those of users' models and properties."""
    if isinstance(error, RecursionError):
        return InvalidPayload(field, value, TOO_DEEP)
    if isinstance(error, UnicodeEncodeError):
        return InvalidPayload(field, value, "contains half of a surrogate pair")
    return InvalidPayload(field, value, reason(error))


def _may_hold_long_integer(data: bytes) -> bool:
    """Python itself refuses to write longer ones, but not for a sign, nor if its limit was raised."""
    return not 0 < sys.get_int_max_str_digits() <= DIGITS_LIMIT or _LONG_NEGATIVE.search(data) is not None


def _examine(
    value: Any, parts: Collection[Any], data: bytes, field: str, limit: int, binary: list[bool] | None
) -> None:
    """Look for what the bytes no longer show: NaN written as null, keys turned into text, `Raw` written unread."""
    if any(part is UNSET for part in parts):
        raise InvalidPayload(field, UNSET, "UNSET has no form in JSON")
    unread: list[Raw] = []

    def unfold(part: Any) -> Any:
        return unread.append(part) if isinstance(part, Raw) else simplify(part)

    try:
        tree = msgspec.to_builtins(value, builtin_types=_KEPT, enc_hook=unfold)
    except Exception as error:
        raise _refusal(error, value, field) from error
    if unread:
        for raw in unread:  # one by one too: `1,"b":2` is no JSON, yet it parses as the value of a key
            check_json(bytes(raw), field, limit)
        if value is not unread[0]:
            check_json(data, field, limit)
    # A number that is not finite leaves a null behind; where there is none, no float needs a look.
    harmless = _LEAVES if b"null" in data else PLAIN
    _examine_tree(tree, harmless if binary is None else harmless - BINARY, field, [] if binary is None else binary)


def _examine_tree(tree: Any, harmless: frozenset[type], field: str, binary: list[bool]) -> None:
    """Level by level, so that the depth is counted on the way; lists of plain values cost one set operation."""
    level: list[Collection[Any]] = [(tree,)]
    deep = 0
    while level:
        below: list[Collection[Any]] = []
        for group in level:
            if not harmless.issuperset(map(type, group)):
                _descend(group, below, field, binary)
        level = below
        deep += bool(level)
        if deep > DEPTH_LIMIT:
            raise InvalidPayload(field, tree, TOO_DEEP)


def _descend(group: Iterable[Any], below: list[Collection[Any]], field: str, binary: list[bool]) -> None:
    """Add to `below` what the lists and objects in `group` contain, after a look at floats and keys."""
    for part in group:
        kind = type(part)
        if kind in _LEAVES:
            if kind in BINARY:
                binary.append(True)
            continue
        if kind is dict:
            if not _TEXT.issuperset(map(type, part)):
                for key in part:
                    if not isinstance(key, str):
                        raise InvalidPayload(field, key, NOT_TEXT)
            below.append(part.values())
        elif kind is float:
            if not math.isfinite(part):
                raise InvalidPayload(field, part, "NaN and infinity have no form in JSON")
        elif isinstance(part, list | tuple | set | frozenset):
            below.append(part)
