"""Unique keys made of a task's arguments: of all of them, or by a function.

The function is checked against the signature when it is given: it must take every call the task takes, by position or
by keyword. So a key function that forgot a parameter is refused at start-up and not at the first enqueue.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from stoker.codec.signature import Signature
from stoker.model.errors import InvalidInput
from stoker.model.unique import Unique

KeyFunction: TypeAlias = Callable[..., str | Unique | None]


def bound_call(
    fn: Callable[..., Any], signature: inspect.Signature, task: str, option: str
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Any]:
    """A function of the task's arguments, called with them as the task is; checked that it takes every such call."""
    by_keyword = _wants_keywords(fn, signature, task, option)

    def call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if by_keyword is None or not (args if by_keyword else kwargs):
            return fn(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        return fn(**bound.arguments) if by_keyword else fn(*bound.args, **bound.kwargs)

    return call


class KeyOf:
    """Finds the unique key of a call: by a function, or for a `Unique` without a key by all arguments."""

    __slots__ = ("_call", "_given", "_signature")

    def __init__(self, by: KeyFunction | Unique, signature: Signature, task: str) -> None:
        self._signature = signature
        self._given = by if isinstance(by, Unique) else None
        self._call = None if isinstance(by, Unique) else bound_call(by, signature.parameters, task, "unique")

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], payload: bytes) -> Unique | None:
        """The key of one call, which the task's signature is known to take."""
        found = self._given if self._call is None else _key(self._call(args, kwargs))
        return None if found is None else with_arguments(found, self._signature, payload)


def with_arguments(unique: Unique, signature: Signature, payload: bytes) -> Unique:
    """The key of a call; jobs of a task with the same arguments share it. The arguments cannot be read from it."""
    return unique.of_arguments(signature.fingerprint(payload)) if unique.is_of_arguments else unique


def _wants_keywords(fn: Callable[..., Any], signature: inspect.Signature, task: str, option: str) -> bool | None:
    """Should arguments go by keyword? None: as given. Raises if neither fits every call."""
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    try:
        own = inspect.signature(fn)
    except (TypeError, ValueError):  # a function written in C need not have one
        return None
    calls = _calls(signature)
    if all(_takes(own, args, kwargs) for args, kwargs in calls):
        return None if inspect.Parameter.VAR_POSITIONAL in kinds else False
    if not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        names = [*signature.parameters]
        by_name = [{**dict(zip(names, args, strict=False)), **kwargs} for args, kwargs in calls]
        if all(_takes(own, (), kwargs) for kwargs in by_name):
            return True
    why = f"must take the arguments of the task, {task}{signature}, but takes {own}"
    raise InvalidInput(option, getattr(fn, "__qualname__", fn), why)


def _calls(signature: inspect.Signature) -> list[tuple[tuple[None, ...], dict[str, None]]]:
    """The shortest and the longest call of a signature, positionals by position; variable arguments left out."""
    named = [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    found = []
    for given in ([p for p in named if p.default is p.empty], named):
        keywords = {p.name: None for p in given if p.kind is p.KEYWORD_ONLY}
        found.append(((None,) * (len(given) - len(keywords)), keywords))
    return found


def _takes(own: inspect.Signature, args: tuple[None, ...], kwargs: Mapping[str, None]) -> bool:
    try:
        own.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _key(found: object) -> Unique | None:
    """The key that a key function returned, checked."""
    if isinstance(found, str):
        return Unique(found)
    if found is None or isinstance(found, Unique):
        return found
    raise InvalidInput("unique", found, "the function must return a key, a Unique, or None for no key")
