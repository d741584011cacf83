"""Arguments and results to JSON and back, typed by the handler's own signature.

`task` encodes a call into a payload, the worker's runner decodes the payload into a call, `handle` decodes results, the
app and REST pass through `encode_payload` what they enqueue by name. The rules kept here: what is stored is one JSON
text that reaches the handler byte for byte; a value that JSON would change on the way (NaN, a number as a key) is
refused before anything is stored; nothing read from a store ever names code to run.

msgspec does the work: a Struct made from the parameters binds arguments as the function does and encodes what was
given, a second one decodes a whole payload by the type hints. Where a function cannot be imitated (variable arguments,
names that a class would change), for payloads that are lists, and for errors there is the slow way, parameter by
parameter, which names what is wrong.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import asdict, astuple

from stoker.codec.json_check import PAYLOAD_LIMIT
from stoker.codec.to_json import PLAIN, encode_value, misplaced_bytes, reason, revive, simplify
from stoker.model.errors import InvalidInput, InvalidPayload, PayloadMismatch
from stoker.model.humanize import count
from stoker.model.markers import REST, STANDING, Marker, places
from stoker.model.seal import check_open

__all__ = ["Call", "Raw", "Signature", "call_of_chunk", "display", "encode_payload"]

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""What a handler is called with: positionals and keywords."""

_encode_sorted = msgspec.json.Encoder(enc_hook=simplify, order="deterministic").encode
_decode_parts = msgspec.json.Decoder(dict[str, Raw] | list[Raw] | None).decode
_decode_rest = msgspec.json.Decoder(list[Raw]).decode


def encode_payload(value: Any, limit: int = PAYLOAD_LIMIT) -> bytes:
    """The payload of a job enqueued by name: an object means keywords, a list positionals, None no arguments.

    `Raw(body)` passes JSON as it is: checked in full, stored unchanged.
    """
    data = encode_value(value, (value,), "payload", limit)
    if data.lstrip()[:1] not in (b"{", b"[", b"n"):
        why = "must be an object (keywords), a list (positionals) or null (no arguments)"
        raise InvalidPayload("payload", data.decode() if isinstance(value, Raw) else value, why)
    return data


def display(data: bytes | None) -> Any:
    """Decode JSON to show it; None if it does not parse, because a listing must not fail."""
    try:
        return None if data is None else msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


# --- the signature ----------------------------------------------------------------------------------------------


class Signature:
    """Encodes and decodes one task's arguments and results; built when the task is registered.

    Of a `chunk` the handler takes a list and returns one: a job has one item of it as argument and one as result.
    """

    __slots__ = (
        "_bind",
        "_hints_by_name",
        "_parameters",
        "_read",
        "_read_result",
        "_readers",
        "_signature",
        "_takes_rest",
        "_unpack",
        "name",
    )

    def __init__(self, fn: Callable[..., Any], name: str | None = None, *, chunk: bool = False) -> None:
        self.name = name or str(getattr(fn, "__name__", type(fn).__name__))
        self._signature = inspect.signature(fn)
        self._parameters = tuple(self._signature.parameters.values())
        self._takes_rest = any(p.kind is p.VAR_POSITIONAL for p in self._parameters)
        hints = self._hints(fn)
        if chunk:
            hints = self._hints_of_item(hints)
        for p in self._parameters:
            if p.default is None and hints.get(p.name, Any) is not Raw:
                hints[p.name] = typing.Optional[hints.get(p.name, Any)]  # noqa: UP045 - a hint need not know `|`
        self._hints_by_name = hints
        self._readers = {p.name: self._reader(p.name, hints.get(p.name, Any)) for p in self._parameters}
        self._bind = _binder(self._parameters)
        self._read, self._unpack = _unpacker(self._parameters, hints)
        self._read_result = _lenient_decoder(hints.get("return", Any))

    @property
    def parameters(self) -> inspect.Signature:
        """The function's own signature."""
        return self._signature

    @property
    def result_hint(self) -> Any:
        """What a job returns; `Any` if the function does not say."""
        return self._hints_by_name.get("return", Any)

    def hint_of(self, place: str) -> Any:
        """The type of an argument by its place in a payload (`markers`); `Any` if the function does not say."""
        for p in self._parameters:
            if p.name == place or (p.kind is p.VAR_POSITIONAL and place.startswith(REST)) or p.kind is p.VAR_KEYWORD:
                return self._hints_by_name.get(p.name, Any)
        return Any

    def __repr__(self) -> str:
        return f"<Signature {self.name}{self._signature}>"

    # Encoding a call.

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Bind as the function itself would and encode: one object, parameter name → value, given ones only."""
        if self._bind is None:
            bound = self._bind_variable(args, kwargs)
            parts: Collection[Any] = bound.values()
        else:
            try:
                bound = self._bind(*args, **kwargs)
            except TypeError:
                raise self._misfit(args, kwargs) from None
            parts = (*args, *kwargs.values()) if kwargs else args
        binary: list[bool] = []
        try:
            data = encode_value(bound, parts, self.name, binary=binary)
        except InvalidPayload as error:
            raise self._blame(args, kwargs, error) from error.__cause__
        if binary:
            self._check_bytes(self._signature.bind(*args, **kwargs).arguments)
        return data

    def places(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], marker: Marker) -> tuple[str, ...]:
        """Where a marker stands in a call."""
        return places(self._bind_variable(args, kwargs).items(), marker)

    def check_named(self, payload: Any) -> None:
        """Refuse bytes for text in the arguments of a job by name: an object with keywords, or a list."""
        if isinstance(payload, Mapping):
            self._check_bytes(payload)
        elif isinstance(payload, list | tuple):
            self._check_bytes(dict(zip((p.name for p in self._parameters), payload, strict=False)))

    def _check_bytes(self, arguments: Mapping[str, Any]) -> None:
        """Refuse bytes where a type hint says text: the handler would get base64."""
        for name, value in arguments.items():
            if why := misplaced_bytes(value, self._hints_by_name.get(name, Any)):
                raise InvalidPayload(f"{self.name}({name})", value, why)

    def _bind_variable(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError:
            raise self._misfit(args, kwargs) from None
        rest: tuple[Any, ...] = ()
        more: dict[str, Any] = {}
        for parameter in self._parameters:
            if parameter.kind is parameter.VAR_POSITIONAL:
                rest = bound.pop(parameter.name, ())
            elif parameter.kind is parameter.VAR_KEYWORD:
                more = bound.pop(parameter.name, {})
        named = {p.name for p in self._parameters if p.kind is p.POSITIONAL_ONLY}
        if self._takes_rest:
            named.add(REST)
        for key in more:
            if key in named:
                why = "is also the name of a positional parameter, a payload cannot carry both"
                raise InvalidInput(f"{self.name}({key})", more[key], why)
        return {**bound, **({REST: rest} if rest else {}), **more}

    def _misfit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> InvalidInput:
        """The error for a call that does not fit the function, in Python's own words."""
        types = [type(a).__name__ for a in args] + [f"{name}={type(v).__name__}" for name, v in kwargs.items()]
        given = ", ".join(types)
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            return InvalidInput(f"{self.name}()", f"{self.name}({given})", str(error))
        return InvalidInput(f"{self.name}()", f"{self.name}({given})", "these arguments cannot be bound")

    def _blame(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: InvalidPayload) -> InvalidPayload:
        """The same error, naming the parameter if one alone causes it."""
        for name, value in self._signature.bind(*args, **kwargs).arguments.items():
            try:
                encode_value(value, (value,), f"{self.name}({name})")
            except InvalidPayload as narrower:
                return narrower
        return error

    def check(self, payload: bytes, *, marked: bool = False) -> None:
        """Raise if a worker could not decode this payload; names the parameter. `marked`: a marker may be any value."""
        if self._read is not None and not marked:
            try:
                self._read(payload)
            except Exception:  # noqa: BLE001, S110 - the slow way below raises the exact error
                pass
            else:
                return
        try:
            self._decode_parts(payload, marked=marked)
        except PayloadMismatch as error:
            given = display(error.value)  # shown as the caller wrote it, if it is JSON
            value = error.value if given is None and error.value != b"null" else given
            raise InvalidPayload(error.field, value, error.why) from None

    def mistakes(self, payload: bytes) -> dict[str, str]:
        """What keeps a worker from decoding each argument, by parameter; under "" what is wrong with the whole."""
        try:
            parts, _ = self._split(payload)
        except PayloadMismatch as error:
            return {"": error.why}
        wrong: dict[str, str] = {}
        for p in self._parameters:
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                continue
            try:
                if p.name in parts:
                    self._value(p.name, parts[p.name])
                elif p.default is p.empty:
                    wrong[p.name] = "a required argument is missing"
            except PayloadMismatch as error:
                wrong[p.name] = error.why
        if not wrong:
            try:
                self.check(payload)
            except InvalidInput as error:
                wrong[""] = f"{error.field}: {error.why}"
        return wrong

    def schema(self) -> dict[str, Any]:
        """A JSON Schema of the arguments, with their defaults; empty where a call has arguments without a name.

        What JSON Schema cannot say of a type hint is left open.
        """
        properties: dict[str, Any] = {}
        named: dict[str, Any] = {}
        for p in self._parameters:
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                return {}
            found: dict[str, Any] = {}
            with suppress(Exception):  # types of the users' own, which only a worker reads
                hint, place = self._hints_by_name.get(p.name, Any), f"{p.name}."
                (found,), inner = msgspec.json.schema_components([hint], ref_template=f"#/$defs/{place}{{name}}")
                named |= {f"{place}{name}": one for name, one in inner.items()}
            if p.default is not p.empty:
                with suppress(Exception):  # a default that JSON has no form for is the function's own business
                    found = {**found, "default": msgspec.to_builtins(p.default, enc_hook=simplify)}
            properties[p.name] = found
        required = [p.name for p in self._parameters if p.default is p.empty]
        return {"type": "object", "properties": properties, "required": required, "$defs": named}

    def fingerprint(self, payload: bytes) -> str:
        """A text that calls share if and only if they give the same arguments, with defaults filled in.

        A default that JSON has no form for counts as not given.
        """
        args, kwargs = self.decode(payload)
        parts: dict[str, Any] = {}
        for name, value in self._signature.bind(*args, **kwargs).arguments.items():
            if value is not self._signature.parameters[name].default:
                parts[name] = value
                continue
            with suppress(Exception):  # the default 1 of a float is 1.0 when it is given
                parts[name] = self._readers[name](Raw(_encode_sorted(value)))
        return blake2b(_encode_sorted(parts), digest_size=16).hexdigest()

    # Decoding a call.

    def argument(self, payload: bytes, name: str) -> Any:
        """One argument of a call as its JSON says it, or the parameter's default."""
        parts, _ = self._split(payload)
        if name in parts:
            return msgspec.json.decode(parts[name])
        default = self._signature.parameters[name].default
        if default is inspect.Parameter.empty:
            raise PayloadMismatch(f"{self.name}({name})", payload, "a required argument is missing")
        return default

    def decode(self, payload: bytes) -> Call:
        """The arguments as the type hints want them; raises `PayloadMismatch` naming parameter and reason."""
        if self._read is not None:
            try:
                return self._unpack(self._read(payload))
            except Exception:  # noqa: BLE001, S110 - the slow way below raises the exact error
                pass
        return self._decode_parts(payload)

    def _decode_parts(self, payload: bytes, *, marked: bool = False) -> Call:
        """Parameter by parameter: for variable arguments, for payloads that are lists, and to name what is wrong."""
        check_open(payload, self.name)
        parts, rest = self._split(payload)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for p in self._parameters:
            if p.kind is p.VAR_POSITIONAL:
                args.extend(self._value(p.name, raw, marked=marked) for raw in rest)
            elif p.kind is p.VAR_KEYWORD:
                kwargs.update({key: self._value(p.name, raw, marked=marked) for key, raw in parts.items()})
                parts = {}
            else:
                if p.name in parts:
                    value = self._value(p.name, parts.pop(p.name), marked=marked)
                elif p.default is not p.empty:
                    value = p.default
                else:
                    raise PayloadMismatch(f"{self.name}({p.name})", payload, "a required argument is missing")
                if p.kind is p.KEYWORD_ONLY:
                    kwargs[p.name] = value
                else:
                    args.append(value)
        for name in parts:
            raise PayloadMismatch(f"{self.name}({name})", payload, "got an unexpected argument")
        return tuple(args), kwargs

    def _split(self, payload: bytes) -> tuple[dict[str, Raw], list[Raw]]:
        """The raw values by parameter name, and the raw values left for *args."""
        try:
            parts = _decode_parts(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PayloadMismatch(self.name, payload, reason(error)) from None
        if parts is None:
            return {}, []
        if isinstance(parts, list):
            names = [p.name for p in self._parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
            if len(parts) > len(names) and not self._takes_rest:
                why = f"takes {count(len(names), 'positional argument')}, the payload has {len(parts)}"
                raise PayloadMismatch(f"{self.name}()", payload, why)
            return dict(zip(names, parts, strict=False)), parts[len(names) :]
        if self._takes_rest and REST in parts:
            try:
                return parts, _decode_rest(parts.pop(REST))
            except msgspec.MsgspecError as error:
                raise PayloadMismatch(f"{self.name}({REST})", payload, reason(error)) from None
        return parts, []

    def _value(self, name: str, raw: Raw, *, marked: bool = False) -> Any:
        if marked and bytes(raw) in STANDING:
            return None
        try:
            return self._readers[name](raw)
        except Exception as error:  # noqa: BLE001 - what users' types raise; a cause would show the value
            raise PayloadMismatch(f"{self.name}({name})", bytes(raw), reason(error)) from None

    # Results.

    def encode_result(self, value: Any) -> tuple[bytes | None, str | None]:
        """The result as JSON, or None and the reason; never raises, because the work is done."""
        if value is None:
            return None, None
        try:
            return encode_value(value, (value,), f"{self.name} result", PAYLOAD_LIMIT), None
        except InvalidPayload as error:
            return None, error.why

    def decode_result(self, data: bytes | None) -> Any:
        """A stored result as the return hint wants it."""
        if data is None:
            return None
        try:
            return self._read_result(data)
        except Exception as error:  # noqa: BLE001 - what users' types raise; a cause would show the value
            raise PayloadMismatch(f"{self.name} result", data, reason(error)) from None

    # Reading the hints.

    def _hints(self, fn: Callable[..., Any]) -> dict[str, Any]:
        target: Any = fn
        while isinstance(target, functools.partial):
            target = target.func
        target = inspect.unwrap(target)
        if not inspect.isroutine(target):
            target = type(target).__call__
        try:
            return typing.get_type_hints(target, include_extras=True)
        except Exception as error:
            why = f"its type hints cannot be resolved ({error}); Stoker reads them when the task is registered"
            raise InvalidInput(f"{self.name}()", fn, why) from error

    def _hints_of_item(self, hints: dict[str, Any]) -> dict[str, Any]:
        """The hints of one job of a chunk."""
        first = self._parameters[0] if len(self._parameters) == 1 else None
        hint = None if first is None else hints.get(first.name)
        if first is None or first.kind > first.POSITIONAL_OR_KEYWORD or typing.get_origin(hint) is not list:
            why = "a task with chunk= takes one parameter, a list whose items have a type, such as docs: list[Doc]"
            raise InvalidInput(f"{self.name}()", f"{self.name}{self._signature}", why)
        if first.default is not first.empty:
            why = "the parameter of a task with chunk= has no default: each job brings one item of the list"
            raise InvalidInput(f"{self.name}({first.name})", first.default, why)
        return {first.name: typing.get_args(hint)[0], "return": _result_of_item(hints.get("return", Any))}

    def _reader(self, parameter: str, hint: Any) -> Callable[[Raw], Any]:
        try:
            return msgspec.json.Decoder(hint, dec_hook=revive).decode
        except Exception as error:
            why = f"this type hint cannot be decoded from JSON ({error}); use Any or Raw to take it as it comes"
            raise InvalidInput(f"{self.name}({parameter})", hint, why) from error


def call_of_chunk(calls: Iterable[Call]) -> Call:
    """The one call of a chunk's handler, from the calls of its jobs."""
    return ([args[0] for args, _ in calls],), {}


def _result_of_item(hint: Any) -> Any:
    """The type of one job's result, from the hint `list[Result | BaseException] | None` of a chunk's handler."""
    lists = [member for member in _members(hint) if typing.get_origin(member) is list]
    results = [one for found in lists for one in _members(typing.get_args(found)[0]) if not _is_error(one)]
    return typing.Union[tuple(results)] if results else Any  # noqa: UP007 - the members are only known here


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _is_error(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseException)


# --- the Structs of the fast way --------------------------------------------------------------------------------


def _binder(parameters: Collection[inspect.Parameter]) -> Callable[..., Any] | None:
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


def _unpacker(
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


def _lenient_decoder(hint: Any) -> Callable[[bytes], Any]:
    """A result is a by-product: a return hint that JSON cannot honour reads as plain JSON."""
    try:
        return msgspec.json.Decoder(hint, dec_hook=revive).decode
    except Exception:  # noqa: BLE001 - msgspec and users' metaclasses raise what they like
        return msgspec.json.Decoder().decode
