"""What the calls of the REST API share. Validation and the OpenAPI document are made from types alone."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from stoker.model.actions import NAME, Name, Parameter, Priority, Reason
from stoker.model.time import LONGEST, SECOND

__all__ = ["NAME", "Name", "Priority", "Reason"]

FilterText: TypeAlias = Annotated[str, Meta(max_length=2_000, description="a filter, such as is:dead queue:mail")]
Cursor: TypeAlias = Annotated[str, Meta(max_length=64, description="`after` of the page before")]
Uuid: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=LONGEST / SECOND)]
Lasting: TypeAlias = Annotated[float, Meta(gt=0, le=LONGEST / SECOND)]
Payload: TypeAlias = Annotated[
    Raw,
    Meta(
        description="JSON that is stored as it is: an object of keywords, a list of positionals, null for no arguments",
        extra_json_schema={"type": ["object", "array", "null"]},
    ),
]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000_000, description="`count` of a preview")]
Moment: TypeAlias = Annotated[datetime, Meta(tz=True, description="`counted_at` of the same preview")]
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=200)]


class Strict(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What a caller sends; a field that is not known is refused."""


class NoBody(Strict):
    """Nothing needs to be said."""


def body(name: str, about: str, parameters: Iterable[Parameter], action: Any = None) -> Any:
    """What is sent with an action of the table; of one `action` among several all parameters may be left out."""
    fields: list[Any] = [] if action is None else [("action", action)]
    for one in parameters:
        if one.required and action is None:
            fields.append((one.name, one.type))
        else:
            fields.append((one.name, bool, False) if one.plain is bool else (one.name, one.type | None, None))
    return msgspec.defstruct(name, fields, bases=(Strict,), kw_only=True, namespace={"__doc__": about})


def given_in(sent: Strict, parameters: Iterable[Parameter]) -> dict[str, Any]:
    """What was sent with an action, without what was left out."""
    found = {one.name: getattr(sent, one.name) for one in parameters}
    return {name: value for name, value in found.items() if value is not None and value is not False}


class RateBody(Strict):
    """So many per so many seconds."""

    n: Annotated[float, Meta(ge=1, le=1_000_000)]
    per: Annotated[float, Meta(ge=1, le=86_400)] = 1.0


class CurveBody(Strict):
    """Waits before retries and after throttles, in seconds: `base`, doubled each time, up to `max`."""

    base: Annotated[float, Meta(ge=1, le=86_400)] = 60.0
    max: Annotated[float, Meta(ge=1, le=86_400)] = 1_800.0


class Done(Struct, kw_only=True):
    """It was done."""

    done: bool = True


def payload(given: Payload | UnsetType) -> Raw | None:
    """The payload of a new job; none where it was left out."""
    return None if isinstance(given, UnsetType) else given


def unset(value: object) -> bool:
    """Was a field left out?"""
    return value is UNSET
