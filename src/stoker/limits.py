"""Limits as tasks declare them: how many jobs of one key run at once, over all workers together.

`Limit` is what users write; `LimitOf` makes of it, for one call of a task, the `Slot` that the job carries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from stoker.codec.signature import Signature
from stoker.codec.to_json import encode_value
from stoker.key_function import bound_call
from stoker.model.errors import InvalidInput
from stoker.model.limit import Hold, Slot
from stoker.model.throttle import Rate

BY_TENANT = "@tenant"
"""The key of a limit that counts by tenant."""

LimitKey: TypeAlias = str | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `n` jobs of one key run at once in their queue, whatever number of workers there is.

    `key` is the name of a parameter, a function of the task's arguments, or "@tenant"; without it all jobs of the task
    count together. Where a function returns None, or a job has no tenant, the job has no limit. Tasks that give the
    same `name` share the limit, if their jobs go to one queue. `hold="retrying"` keeps a job's place while it waits for
    a retry, so that jobs of a key run strictly one after the other. `rate` limits how many jobs of a key start in a
    time; with it `n` may be left out.
    """

    n: int | None = None
    key: LimitKey | None = None
    _: KW_ONLY
    name: str | None = None
    hold: Hold = "running"
    rate: Rate | None = None

    def __post_init__(self) -> None:
        self.slot("probe", None)
        key: Any = self.key
        if key is not None and not isinstance(key, str) and not callable(key):
            why = 'must be the name of a parameter, a function of the task\'s arguments, or "@tenant"'
            raise InvalidInput("Limit.key", key, why)

    def slot(self, kind: str, key: str | None) -> Slot:
        """What a job of this kind carries."""
        return Slot(self.name or kind, key, self.n, self.hold, self.rate)


LimitOption: TypeAlias = Limit | Literal[False]
"""A limit, or none although the task has one."""


def check_limit(value: object) -> None:
    """Refuse what is no limit, where it is written."""
    if value is not False and not isinstance(value, Limit):
        raise InvalidInput("limit", value, 'must be a Limit, such as Limit(3, key="customer"), or False for none')


class LimitOf:
    """The limit of one task: finds the key of each call."""

    __slots__ = ("_call", "_key", "_kind", "_limit", "_signature")

    def __init__(self, limit: Limit, kind: str, signature: Signature | None) -> None:
        self._limit, self._kind, self._signature = limit, kind, signature
        self._key = limit.key
        self._call: Callable[[tuple[Any, ...], Mapping[str, Any]], Any] | None = None
        if callable(limit.key) and signature is not None:
            self._call = bound_call(limit.key, signature.parameters, kind, "limit")
        elif isinstance(limit.key, str) and limit.key != BY_TENANT and signature is not None:
            _check_parameter(limit.key, kind, signature)

    def of_call(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], payload: bytes, tenant: str | None
    ) -> Slot | None:
        """The limit of a job that calls the task; None: it has none."""
        if self._call is None:
            return self.of_payload(payload, tenant)
        found = self._call(args, kwargs)
        return None if found is None else self._slot(_text(found))

    def of_payload(self, payload: bytes, tenant: str | None) -> Slot | None:
        """The same for a job by name, of which only the payload is known."""
        if self._key is None:
            return self._slot(None)
        if self._key == BY_TENANT:
            return None if tenant is None else self._slot(tenant)
        if not isinstance(self._key, str):
            why = "computes its key from arguments; give limit= with a job by name"
            raise InvalidInput("limit", self._kind, why)
        return self._slot(_text(self._argument(payload, self._key)))

    def _argument(self, payload: bytes, name: str) -> Any:
        if self._signature is not None:
            return self._signature.argument(payload, name)
        parts = msgspec.json.decode(payload)
        if not isinstance(parts, dict) or name not in parts:
            why = f"has no argument {name!r}, which is the key of its limit; name the arguments in the payload"
            raise InvalidInput("limit", self._kind, why)
        return parts[name]

    def _slot(self, key: str | None) -> Slot:
        return self._limit.slot(self._kind, key)


def _check_parameter(name: str, kind: str, signature: Signature) -> None:
    named = [
        p.name for p in signature.parameters.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if name not in named:
        known = ", ".join(named) or "none"
        why = f"is no parameter of task {kind}{signature.parameters}; its parameters: {known}"
        raise InvalidInput("Limit.key", name, why)


def _text(value: Any) -> str:
    """A key as text: a text as it is, anything else as its JSON."""
    return value if isinstance(value, str) else encode_value(value, (value,), "limit key").decode()
