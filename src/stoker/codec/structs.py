"""The fast way between a call and its payload: Structs made from a handler's parameters.

One binds arguments as the function does and encodes what was given; one decodes a whole payload by the type hints.
Where a function cannot be imitated (variable arguments, names that a class would change) there is none, and `signature`
goes parameter by parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict, astuple

from stoker.codec.to_json import PLAIN, revive

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""What a handler is called with: positionals and keywords."""


def binder(parameters: Collection[inspect.Parameter]) -> Callable[..., Any] | None:
    """A Struct that takes arguments as the function does; None where only `inspect` can imitate the function.

    Its defaults are UNSET, which msgspec leaves out of the JSON: what the caller did not give is not stored, what he
    gave is, even where it equals today's default.
    """
    positional: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    keyword: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for p in parameters:
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) or _is_private(p.name):
            return None
        fields = keyword if p.kind is p.KEYWORD_ONLY else positional
        fields.append((p.name, Any) if p.default is p.empty else (p.name, Any, UNSET))
    base = msgspec.defstruct("Positional", positional, gc=False)
    return msgspec.defstruct("Arguments", keyword, bases=(base,), kw_only=True, gc=False) if keyword else base


def unpacker(
    parameters: Collection[inspect.Parameter], hints: Mapping[str, Any]
) -> tuple[Callable[[bytes], Any] | None, Callable[[Any], Call]]:
    """A typed decoder for the whole payload, and what turns its Struct into a call; None for variable arguments."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) or _is_private(p.name):
            return None, lambda _: ((), {})
        hint = hints.get(p.name, Any)
        fields.append((p.name, hint) if p.default is p.empty else (p.name, hint, _default(p.default)))
    struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, gc=False)
    read = msgspec.json.Decoder(struct, dec_hook=revive).decode
    keywords = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    count = len(parameters) - len(keywords)
    if not keywords:
        return read, lambda arguments: (astuple(arguments), {})
    if not count:
        return read, lambda arguments: ((), asdict(arguments))

    def unpack(arguments: Any) -> Call:
        values = astuple(arguments)
        return values[:count], dict(zip(keywords, values[count:]))  # noqa: B905 - strict costs, and lengths are ours

    return read, unpack


def _is_private(name: str) -> bool:
    """A class, hence a Struct, would store this name under another one."""
    return name.startswith("__") and not name.endswith("__")


def _default(value: Any) -> Any:
    """The function's own default object, never a copy of it: msgspec would copy or refuse a mutable one."""
    return value if type(value) in PLAIN else msgspec.field(default_factory=lambda: value)


def lenient_decoder(hint: Any) -> Callable[[bytes], Any]:
    """A result is a by-product: a return hint that JSON cannot honour reads as plain JSON."""
    try:
        return msgspec.json.Decoder(hint, dec_hook=revive).decode
    except Exception:  # noqa: BLE001 - msgspec and users' metaclasses raise what they like
        return msgspec.json.Decoder().decode
