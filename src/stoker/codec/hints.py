"""Type hints of two handlers compared: can what one returns be an argument of the other?

`Task` asks when a chain or a group is made. What is compared is the JSON that travels between them, so a model may
become a dict on the way. Types that msgspec does not know are taken as they are: only a worker can judge them.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from typing import Any, Final

from msgspec import inspect

from stoker.codec.signature import Signature
from stoker.model.errors import InvalidInput
from stoker.model.markers import PREVIOUS, RESULTS

_TEXTS: Final = (
    inspect.StrType,
    inspect.BytesType,
    inspect.ByteArrayType,
    inspect.MemoryViewType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
    inspect.DecimalType,
)
_LISTS: Final = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)
_OBJECTS: Final = (inspect.DictType, inspect.TypedDictType, inspect.DataclassType, inspect.StructType)
_NUMBERS: Final = frozenset({"int", "float"})


def check_previous(link: Signature, where: Iterable[str], parent: Signature) -> None:
    """Refuse `PREVIOUS` in these places of a call if the job before it returns nothing, or something else."""
    returned = parent.result_hint
    if returned is types.NoneType:
        why = f"stands for the result of {parent.name}, which returns None; give it a result, or leave PREVIOUS out"
        raise InvalidInput(PREVIOUS.name, link.name, why)
    for place in where:
        if not fits(returned, wanted := link.hint_of(place)):
            why = f"takes {named(wanted)}, but PREVIOUS is the result of {parent.name}, which is {named(returned)}"
            raise InvalidInput(f"{link.name}({place})", PREVIOUS, why)


def check_results(callback: Signature, where: Iterable[str], member: Signature | None, *, may_fail: bool) -> None:
    """Refuse `RESULTS` in these places of a call if it takes no list, or none of what such a member returns.

    `member` is None for one that is not known here. `may_fail`: a member that failed is None in the list.
    """
    returned = Any if member is None else member.result_hint
    for place in where:
        wanted = callback.hint_of(place)
        if not fits(list[Any], wanted) or not fits(list[returned], wanted):  # type: ignore[valid-type]  # made here
            is_ = "a list" if member is None else f"a list with the results of {member.name}, {named(returned)} each"
            why = f"takes {named(wanted)}, but RESULTS is {is_}"
            raise InvalidInput(f"{callback.name}({place})", RESULTS, why)
        if may_fail and not fits(list[None], wanted):
            why = f"takes {named(wanted)}, but RESULTS has None for a member that failed; let the items be None too"
            raise InvalidInput(f"{callback.name}({place})", RESULTS, why)


def fits(given: Any, wanted: Any) -> bool:
    """Can every value of one type be read as the other from JSON? True where that is not known."""
    try:
        return _fits(inspect.type_info(given), inspect.type_info(wanted))
    except Exception:  # noqa: BLE001 - a type that only a worker can judge
        return True


def named(hint: Any) -> str:
    """A type as people write it."""
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def _fits(given: inspect.Type, wanted: inspect.Type) -> bool:
    if len(parts := _parts(given)) > 1:
        return all(_fits(one, wanted) for one in parts)
    if isinstance(wanted, inspect.UnionType):
        return any(_fits(given, one) for one in wanted.types)
    forms, accepted = _forms(given), _forms(wanted)
    if not forms or not accepted:
        return True
    if isinstance(wanted, inspect.FloatType | inspect.DecimalType | inspect.TimeDeltaType):
        accepted |= _NUMBERS
    if not forms <= accepted:
        return False
    if isinstance(given, _LISTS) and isinstance(wanted, _LISTS):
        return _fits(given.item_type, wanted.item_type)
    if isinstance(given, inspect.DictType) and isinstance(wanted, inspect.DictType):
        return _fits(given.value_type, wanted.value_type)
    return True


def _parts(given: inspect.Type) -> tuple[inspect.Type, ...]:
    """The types of which a value has one, each with one form."""
    match given:
        case inspect.UnionType(types=types_):
            return types_
        case inspect.LiteralType(values=values) if len({*map(type, values)}) > 1:
            return tuple(inspect.LiteralType((value,)) for value in values)
    return (given,)


def _forms(known: inspect.Type) -> frozenset[str]:
    """The forms in JSON that values of a type have; empty: any, or not known."""
    match known:
        case inspect.NoneType():
            return frozenset({"null"})
        case inspect.BoolType():
            return frozenset({"bool"})
        case inspect.IntType():
            return frozenset({"int"})
        case inspect.FloatType():
            return frozenset({"float"})
        case inspect.LiteralType(values=values):
            return frozenset("text" if isinstance(value, str) else "int" for value in values)
        case inspect.EnumType(cls=cls):
            return frozenset("int" if isinstance(one.value, int) else "text" for one in cls)
        case inspect.StructType(array_like=True) | inspect.TupleType() | inspect.NamedTupleType():
            return frozenset({"list"})
    if isinstance(known, _TEXTS):
        return frozenset({"text"})
    if isinstance(known, _LISTS):
        return frozenset({"list"})
    return frozenset({"object"}) if isinstance(known, _OBJECTS) else frozenset()
