from __future__ import annotations

import enum
import functools
import inspect
import json
import keyword
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.codec.json_check import DIGITS_LIMIT, PAYLOAD_LIMIT, check_json
from stoker.codec.signature import Raw, Signature, display, encode_payload
from stoker.model.errors import InvalidInput, InvalidPayload, PayloadTooLarge

NAN, INF = float("nan"), float("inf")


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Level(enum.IntEnum):
    LOW = 1


class Tone(enum.StrEnum):
    LOUD = "loud"


class Odd(enum.Enum):
    NOTHING = NAN


class Point(msgspec.Struct):
    x: float
    y: float = 0.0


class Holder(msgspec.Struct):
    body: Raw


@dataclass
class Address:
    street: str
    tags: list[str] = field(default_factory=list)


class Options(TypedDict, total=False):
    width: int


class Pair(NamedTuple):
    left: int
    right: str


class Loud(str):
    __slots__ = ()


class Meters(float):
    pass


class Count(int):
    pass


class Later(datetime):
    pass


class Opaque:
    pass


async def resize(image_id: int, *, width: int = 800, note: str | None = None) -> str:
    return f"{image_id}x{width}{note}"


def through(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> inspect.BoundArguments:
    """A call that went to a store and came back, bound to the function's parameters."""
    signature = Signature(fn)
    payload = signature.encode(args, kwargs)
    check_json(payload)
    called, named = signature.decode(payload)
    return inspect.signature(fn).bind(*called, **named)


# --- a call becomes a payload ---


@pytest.mark.spec("DATA-01")
def test_a_payload_is_one_object_of_the_arguments_given() -> None:
    signature = Signature(resize)
    assert signature.encode((7,), {}) == b'{"image_id":7}'
    assert signature.encode((), {"image_id": 7, "width": 200}) == b'{"image_id":7,"width":200}'
    assert signature.encode((7,), {"note": None}) == b'{"image_id":7,"note":null}'
    assert Signature(lambda: None).encode((), {}) == b"{}"


@pytest.mark.spec("DATA-01")
def test_a_value_given_is_stored_even_where_it_equals_the_default() -> None:
    assert Signature(resize).encode((7,), {"width": 800}) == b'{"image_id":7,"width":800}'


@pytest.mark.spec("DATA-01")
def test_defaults_are_those_of_the_code_that_runs() -> None:
    shared: list[int] = []

    def before(a: int, b: int = 1) -> None: ...
    def after(a: int, b: int = 2, c: list[int] = shared, *, d: Address = Address("x")) -> None: ...  # noqa: B008

    args, kwargs = Signature(after).decode(Signature(before).encode((5,), {}))
    assert args == (5, 2, [])
    assert args[2] is shared
    assert kwargs == {"d": Address("x")}


def variable(first: int, second: int = 2, *rest: int, only: str = "o", **more: float) -> None: ...


@pytest.mark.spec("DATA-02")
def test_variable_arguments() -> None:
    signature = Signature(variable)
    payload = signature.encode((1, 5, 6, 7), {"only": "x", "alpha": 1.5})
    assert json.loads(payload) == {"first": 1, "second": 5, "*": [6, 7], "only": "x", "alpha": 1.5}
    assert signature.decode(payload) == ((1, 5, 6, 7), {"only": "x", "alpha": 1.5})
    assert signature.encode((1,), {}) == b'{"first":1}'
    assert signature.decode(b'{"first":1}') == ((1, 2), {"only": "o"})
    assert signature.decode(b'{"first":1,"*":[9]}') == ((1, 2, 9), {"only": "o"})
    assert signature.decode(b"[1,2,3,4]") == ((1, 2, 3, 4), {"only": "o"})


@pytest.mark.spec("DATA-02")
def test_keywords_that_a_payload_could_not_tell_apart_are_refused() -> None:
    def sly(a: int, /, *rest: int, **more: int) -> None: ...

    signature = Signature(sly)
    for clash in ("a", "*"):
        with pytest.raises(InvalidInput, match="positional parameter"):
            signature.encode((1,), {clash: 2})
    assert signature.decode(signature.encode((1, 2), {"b": 3})) == ((1, 2), {"b": 3})


@pytest.mark.spec("DATA-03")
@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "missing a required.*'image_id'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"image_id": 2}, "multiple values for argument 'image_id'"),
        ((1,), {"wdith": 2}, "unexpected keyword argument 'wdith'"),
    ],
)
def test_a_call_that_does_not_fit_raises_pythons_message(
    args: tuple[int, ...], kwargs: dict[str, int], words: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"resize\(\): .*{words}"):
        Signature(resize).encode(args, kwargs)
    with pytest.raises(TypeError, match=words):
        inspect.signature(resize).bind(*args, **kwargs)


@pytest.mark.spec("DATA-03")
def test_positional_only_parameters_stay_so() -> None:
    def f(a: int, /, b: int) -> None: ...

    signature = Signature(f)
    with pytest.raises(InvalidInput, match="'a'"):
        signature.encode((), {"a": 1, "b": 2})
    assert signature.encode((1,), {"b": 2}) == b'{"a":1,"b":2}'
    assert signature.decode(b'{"b":2,"a":1}') == ((1, 2), {})


def test_names_that_mean_something_elsewhere_are_only_names() -> None:
    def f(self: int, cls: int, name: int, __init__: int, *, args: int, kwargs: int) -> None: ...

    def g(__private: int, ___: int) -> None: ...  # noqa: PYI063

    assert through(g, 1, 2).args == (1, 2)
    given = {"self": 1, "cls": 2, "name": 3, "__init__": 4, "args": 5, "kwargs": 6}
    assert through(f, **given).arguments == given


# --- a payload becomes a call ---


def typed(
    address: Address,
    point: Point,
    options: Options,
    pair: Pair,
    at: datetime,
    on: date,
    when: time,
    lasts: timedelta,
    key: UUID,
    price: Decimal,
    size: Size,
    level: Level,
    tone: Tone,
    data: bytes,
    mode: Literal["a", "b"],
    maybe: int | str | None,
    tags: set[str],
    pages: tuple[int, ...],
    deep: dict[str, list[Address]],
    small: Annotated[int, msgspec.Meta(le=10)],
) -> None: ...


@pytest.mark.spec("DATA-04")
def test_arguments_arrive_as_the_hints_say() -> None:
    values = {
        "address": Address("here", ["a"]),
        "point": Point(1.5),
        "options": {"width": 3},
        "pair": Pair(1, "r"),
        "at": datetime(2030, 1, 1, 12, tzinfo=UTC),
        "on": date(2030, 1, 1),
        "when": time(12, 30),
        "lasts": timedelta(days=1, microseconds=3),
        "key": UUID(int=7),
        "price": Decimal("1.10"),
        "size": Size.LARGE,
        "level": Level.LOW,
        "tone": Tone.LOUD,
        "data": b"\0\xff",
        "mode": "b",
        "maybe": None,
        "tags": {"x", "y"},
        "pages": (1, 2),
        "deep": {"k": [Address("there")]},
        "small": 10,
    }
    back = through(typed, **values).arguments
    assert back == values
    assert {name: type(value) for name, value in back.items()} == {name: type(v) for name, v in values.items()}
    assert str(back["price"]) == "1.10"


@pytest.mark.spec("DATA-04")
def test_integers_of_any_size_stay_exact() -> None:
    def f(n: int, m: Any) -> None: ...

    for n in (2**53 + 1, -(2**70), 10**4_299):
        assert through(f, n, [n]).args == (n, [n])


@pytest.mark.spec("DATA-04")
def test_without_hints_arguments_arrive_as_plain_json() -> None:
    def f(a, b=None): ...  # type: ignore[no-untyped-def] # noqa: ANN001

    assert through(f, Address("s"), (1, Size.SMALL)).args == ({"street": "s", "tags": []}, [1, "s"])


@pytest.mark.spec("DATA-04")
def test_a_default_of_none_allows_none() -> None:
    def f(a: int = None, *, b: Raw = None) -> None: ...  # type: ignore[assignment] # noqa: RUF013

    assert through(f, None).args == (None,)


@pytest.mark.spec("DATA-04")
def test_methods_partials_and_wrapped_functions() -> None:
    class Service:
        def call(self, at: date) -> date:
            return at

        def __call__(self, at: date) -> date:
            return at

    def wrap(fn: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(fn)(lambda *args, **kwargs: fn(*args, **kwargs))

    def plain(number: int, at: date) -> date:
        return at

    day = date(2030, 1, 1)
    for fn in (Service().call, Service(), functools.partial(plain, 1), wrap(Service().call)):
        signature = Signature(fn, "named")
        assert signature.decode(signature.encode((), {"at": day})) in (((day,), {}), ((), {"at": day}))
        assert signature.decode_result(b'"2030-01-01"') == day
    assert Signature(Service()).name == "Service"
    assert repr(Signature(plain)) == "<Signature plain(number: 'int', at: 'date') -> 'date'>"


@pytest.mark.spec("DATA-04")
def test_subclasses_of_plain_types_travel_as_what_they_are() -> None:
    def f(a: str, b: float, c: int, d: datetime, e: dict[str, int]) -> None: ...

    later = Later(2030, 1, 1, tzinfo=UTC)
    back = through(f, Loud("x"), Meters(1.5), Count(3), later, defaultdict(int, {Loud("k"): 1})).args
    assert back == ("x", 1.5, 3, later, {"k": 1})
    assert [type(v) for v in back] == [str, float, int, datetime, dict]


@pytest.mark.spec("DATA-23")
def test_attrs_classes() -> None:
    attrs = pytest.importorskip("attrs")
    kind = attrs.make_class("Thing", {"n": attrs.field(type=int), "at": attrs.field(type=date, default=None)})

    def f(thing: Any) -> None: ...

    f.__annotations__["thing"] = kind
    assert through(f, kind(3, date(2030, 1, 1))).args == (kind(3, date(2030, 1, 1)),)
    with pytest.raises(InvalidPayload, match=r"f\(thing\)"):
        Signature(f).decode(b'{"thing":{"n":"x"}}')


def hints_of(model: Any) -> tuple[Any, ...]:
    return model, list.__class_getitem__(model), model | None, model


@pytest.mark.spec("DATA-23")
def test_pydantic_models() -> None:
    pydantic = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", at=(datetime, ...), price=(Decimal, ...))
    model = pydantic.create_model(
        "Model",
        n=(int, pydantic.Field(alias="number")),
        f=(float, 0.5),
        inner=(inner, ...),
        by=(dict[int, str], {}),
        __config__={"strict": True},
    )

    def f(m: Any, many: Any = (), maybe: Any = None) -> Any: ...

    f.__annotations__.update(dict(zip(("m", "many", "maybe", "return"), hints_of(model), strict=True)))
    thing = model(number=1, inner=inner(at=datetime(2030, 1, 1, tzinfo=UTC), price=Decimal("1.10")), by={1: "x"})
    assert through(f, thing, [thing], maybe=thing).args == (thing, [thing], thing)
    signature = Signature(f)
    data, warning = signature.encode_result(thing)
    assert warning is None
    assert signature.decode_result(data) == thing
    with pytest.raises(InvalidPayload, match=r"f\(m\).*number"):
        signature.decode(b'{"m":{"number":"x"}}')
    with pytest.raises(InvalidPayload, match="NaN"):
        signature.encode((model(number=1, f=NAN, inner=thing.inner),), {})


@pytest.mark.spec("DATA-22")
def test_hints_that_cannot_be_honoured_are_refused_at_once() -> None:
    def union(x: Address | Point) -> None: ...
    def missing(x: Any) -> None: ...

    missing.__annotations__["x"] = "Nowhere"
    with pytest.raises(InvalidInput, match=r"union\(x\): this type hint cannot be decoded"):
        Signature(union)
    with pytest.raises(InvalidInput, match=r"missing\(\): its type hints cannot be resolved .*Nowhere"):
        Signature(missing)


# --- payloads that another program wrote ---


@pytest.mark.spec("DATA-05")
def test_an_object_means_keywords_a_list_positionals_null_no_arguments() -> None:
    def f(a: int = 1, b: date | None = None, *, c: int = 3) -> None: ...

    signature = Signature(f)
    assert signature.decode(b' {"b": "2030-01-01", "c": 5} ') == ((1, date(2030, 1, 1)), {"c": 5})
    assert signature.decode(b' [7 , "2030-01-01"]') == ((7, date(2030, 1, 1)), {"c": 3})
    for nothing in (b"null", b"[]", b"{}", b" null\n"):
        assert signature.decode(nothing) == ((1, None), {"c": 3})


@pytest.mark.spec("DATA-05")
def test_encode_payload_takes_what_means_arguments() -> None:
    assert encode_payload({"a": 1}) == b'{"a":1}'
    assert encode_payload([1, "x"]) == b'[1,"x"]'
    assert encode_payload((1,)) == b"[1]"
    assert encode_payload(None) == b"null"
    assert encode_payload(Address("s")) == b'{"street":"s","tags":[]}'
    for scalar in (1, 1.5, "null", True, False, b"{}", Raw(b"7"), Raw(b' "n"')):
        with pytest.raises(InvalidPayload, match="object"):
            encode_payload(scalar)
    with pytest.raises(PayloadTooLarge):
        encode_payload([1, 2, 3], limit=5)


@pytest.mark.spec("DATA-06")
def test_raw_json_is_stored_byte_for_byte() -> None:
    body = b' { "a" : [ 1.0 , 1e2, 123456789012345678901234567890 ] ,\n"b":"\\u00e9" } '
    assert encode_payload(Raw(body)) == body
    assert encode_payload(Raw(body.decode())) == body


@pytest.mark.spec("DATA-06")
@pytest.mark.parametrize("text", ["[1.0, 1e2]", "null", "{}", '"\\u00e9"', "12345678901234567890123", '{ "a" : 1 }'])
def test_a_raw_parameter_gets_the_json_untouched(text: str) -> None:
    def f(body: Raw, other: int = 0) -> None: ...

    signature = Signature(f)
    payload = signature.encode((Raw(text),), {})
    assert payload == b'{"body":' + text.encode() + b"}"
    assert bytes(signature.decode(payload)[0][0]) == text.encode()
    assert bytes(signature.decode(f"[ {text} ]".encode())[0][0]) == text.encode()


@pytest.mark.spec("DATA-06", "DATA-14")
@pytest.mark.parametrize(
    "text", ['{"a":1,"a":2}', "NaN", "", '1,"other":2', '"\\u0000"', "[" * 65 + "]" * 65, "[" * 64 + "]" * 64]
)
def test_raw_arguments_are_checked_at_any_depth(text: str) -> None:
    def f(body: Any, other: Any = None) -> None: ...

    signature = Signature(f)
    for hiding in (Raw(text), [Raw(text)], {"k": (Raw(text),)}, Holder(Raw(text))):
        with pytest.raises(InvalidPayload):
            signature.encode((hiding,), {})
        data, warning = signature.encode_result([hiding])
        assert data is None
        assert warning


@pytest.mark.spec("DATA-07")
@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b'{"image_id":"x"}', r"resize\(image_id\): Expected `int`, got `str`"),
        (b'{"image_id":1,"width":[]}', r"resize\(width\): Expected `int`, got `array`"),
        (b"{}", r"resize\(image_id\): a required argument is missing"),
        (b"null", r"resize\(image_id\): a required argument is missing"),
        (b'{"image_id":1,"height":2}', r"resize\(height\): got an unexpected argument"),
        (b"[1,2]", r"resize\(\): takes 1 positional argument, the payload has 2"),
        (b"7", r"resize: Expected `object \| array \| null`"),
        (b'{"image_id":', r"resize: Input data was truncated"),
        (b"", r"resize: "),
        (b'{"note":"\xff","image_id":1}', r"resize\(note\): .*utf-8"),
        (b"[" * 100_000, r"resize: .*recursion"),
        (b'{"image_id":' + b"[" * 100_000 + b"]" * 100_000 + b"}", r"resize: .*recursion"),
    ],
)
def test_a_payload_that_does_not_fit_names_parameter_and_reason(payload: bytes, words: str) -> None:
    with pytest.raises(InvalidPayload, match=words):
        Signature(resize).decode(payload)


@pytest.mark.spec("DATA-07")
def test_a_payload_that_does_not_fit_variable_arguments() -> None:
    signature = Signature(variable)
    for payload, words in {
        b'{"first":1,"*":7}': r"variable\(\*\): Expected `array`",
        b'{"first":1,"*":["x"]}': r"variable\(rest\): Expected `int`",
        b'{"first":1,"other":"x"}': r"variable\(more\): Expected `float`",
        b'{"*":[1]}': r"variable\(first\): a required",
    }.items():
        with pytest.raises(InvalidPayload, match=words):
            signature.decode(payload)


@pytest.mark.spec("DATA-07")
def test_schema_drift_and_errors_of_users_types_are_payload_errors() -> None:
    class Picky(msgspec.Struct):
        n: int

        def __post_init__(self) -> None:
            raise KeyError("n")

    def f(size: Size = Size.SMALL, picky: Any = None, opaque: Any = None) -> None: ...

    f.__annotations__.update(picky=Picky, opaque=Opaque)
    signature = Signature(f)
    with pytest.raises(InvalidPayload, match=r"f\(size\): Invalid enum value; got text"):
        signature.decode(b'{"size":"xl"}')
    with pytest.raises(InvalidPayload, match=r"f\(picky\): 'n'"):
        signature.decode(b'{"picky":{"n":1}}')
    with pytest.raises(InvalidPayload, match=r"f\(opaque\): JSON cannot be read as Opaque"):
        signature.decode(b'{"opaque":1}')


# --- values that JSON would change ---


def anything(*args: Any, **kwargs: Any) -> None: ...
def two(a: Any, b: Any = None) -> None: ...


@pytest.mark.spec("DATA-08")
@pytest.mark.parametrize("number", [NAN, INF, -INF, Meters("nan"), Odd.NOTHING])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda n: n,
        lambda n: [n],
        lambda n: (1, [None, {"k": (n,)}]),
        lambda n: {"k": n},
        lambda n: {n} if n == n else [n],
        Point,
        lambda n: [Point(1, n)],
        lambda n: Address("s", [n]),
    ],
)
def test_numbers_that_are_not_finite_are_refused_wherever_they_hide(number: Any, wrap: Callable[[Any], Any]) -> None:
    for fn in (two, anything):
        with pytest.raises(InvalidPayload, match=r"(two|anything)\((a|b|args|kwargs)\): NaN and infinity"):
            Signature(fn).encode((wrap(number),), {})
        with pytest.raises(InvalidPayload, match="NaN and infinity"):
            Signature(fn).encode((None,), {"b": wrap(number)})
    with pytest.raises(InvalidPayload, match="NaN and infinity"):
        encode_payload([wrap(number)])


@pytest.mark.spec("DATA-09")
@pytest.mark.parametrize(
    "key", [1, 1.5, NAN, None, True, (1,), b"x", UUID(int=1), date(2030, 1, 1), timedelta(1), Decimal(1), Level.LOW]
)
def test_keys_that_are_not_text_are_refused(key: Any) -> None:
    for wrap in (lambda d: d, lambda d: [1, d], lambda d: {"k": d}, lambda d: Address("s", d)):
        with pytest.raises(InvalidPayload, match=r"two\(a\): .*key"):
            Signature(two).encode((wrap({key: 1}),), {})


@pytest.mark.spec("DATA-09")
def test_keys_that_are_text_of_another_class_are_taken() -> None:
    assert Signature(two).encode(({Tone.LOUD: 1, Loud("k"): 2},), {}) == b'{"a":{"loud":1,"k":2}}'


@pytest.mark.spec("DATA-10")
@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", "a\udfff"])
def test_text_that_no_store_can_hold_is_refused(text: str) -> None:
    for value in (text, [text], {text: 1}, {"k": {"k": [text]}}, Address(text), Loud(text)):
        with pytest.raises(InvalidPayload, match=r"two\(a\): .*(NUL|surrogate)"):
            Signature(two).encode((value,), {})
    with pytest.raises(InvalidPayload):
        Signature(anything).encode((), {text: 1})


@pytest.mark.spec("DATA-10")
def test_text_that_only_looks_like_it_is_taken() -> None:
    for text in ("\\u0000", "\\\\u0000", "\\ud800", "null NaN", "\U0001f600"):
        assert through(two, text, [text]).args == (text, [text])


@pytest.mark.spec("DATA-11")
def test_depth_counts_the_payload_itself() -> None:
    def tower(levels: int) -> Any:
        value: Any = 1
        for level in range(levels):
            value = [value] if level % 2 else {"k": value}
        return value

    signature = Signature(two)
    check_json(signature.encode((tower(63),), {}))
    check_json(encode_payload(tower(64)))
    for levels in (64, 500, 50_000):
        with pytest.raises(InvalidPayload, match="deeper than 64"):
            signature.encode((tower(levels),), {})
        with pytest.raises(InvalidPayload, match="deeper than 64"):
            encode_payload(tower(levels + 1))
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidPayload, match="deeper than 64"):
        signature.encode((endless,), {})


@pytest.mark.spec("DATA-12")
def test_size_counts_the_payload_as_stored() -> None:
    signature = Signature(two)
    fits = "x" * (PAYLOAD_LIMIT - len('{"a":""}'))
    assert len(signature.encode((fits,), {})) == PAYLOAD_LIMIT
    for value in (fits + "x", "é" * (PAYLOAD_LIMIT // 2), ["x" * 1_000] * 2_000):
        with pytest.raises(PayloadTooLarge, match=r"two(\(a\))?: is larger than 1,048,576 bytes"):
            signature.encode((value,), {})
    with pytest.raises(PayloadTooLarge, match="two: is larger"):
        signature.encode(("x" * 600_000, "x" * 600_000), {})


@pytest.mark.spec("DATA-13")
@pytest.mark.parametrize("allowed", [DIGITS_LIMIT, 0, 10_000])
def test_integers_end_at_the_limit_whatever_the_interpreter_allows(allowed: int) -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(allowed)
    try:
        signature = Signature(two)
        for fits in (10**4_300 - 1, -(10**4_299) + 1, "9" * 9_000, "-" + "9" * 9_000):
            assert signature.decode(signature.encode((fits,), {}))[0] == (fits, None)
        for wide in (10**4_300, -(10**4_299), -(10**4_300), [10**5_000]):
            with pytest.raises(InvalidPayload):
                signature.encode((wide,), {})
    finally:
        sys.set_int_max_str_digits(before)


def test_what_has_no_form_in_json_is_refused_by_parameter() -> None:
    strange: list[Any] = [Opaque(), [Opaque()], msgspec.UNSET, [msgspec.UNSET], 1j, iter(()), Opaque]
    for value in strange:
        with pytest.raises(InvalidPayload, match=r"two(\(b\))?: "):
            Signature(two).encode((1, value), {})


# --- results ---


def named(n: int) -> dict[str, Point]: ...  # type: ignore[empty-body]


@pytest.mark.spec("DATA-17", "DATA-18")
def test_a_result_is_decoded_by_the_return_hint() -> None:
    signature = Signature(named)
    data, warning = signature.encode_result({"a": Point(1, 2)})
    assert (data, warning) == (b'{"a":{"x":1,"y":2}}', None)
    assert signature.decode_result(data) == {"a": Point(1, 2)}
    assert signature.encode_result(None) == (None, None)
    assert signature.decode_result(None) is None
    with pytest.raises(InvalidPayload, match=r"named result: Expected `object`"):
        signature.decode_result(b"[]")


@pytest.mark.spec("DATA-18")
def test_a_return_hint_that_json_cannot_honour_reads_as_plain_json() -> None:
    def f() -> Address | Point: ...  # type: ignore[empty-body]

    assert Signature(f).decode_result(b'{"x":1}') == {"x": 1}


class Moody:
    def __str__(self) -> str:
        raise RuntimeError("no")


class Boom(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Explosive(datetime):
    def isoformat(self, *args: Any, **kwargs: Any) -> str:
        raise Boom


@pytest.mark.spec("DATA-17")
@pytest.mark.parametrize(
    "value",
    [
        NAN,
        {1: 2},
        "\0",
        "\ud800",
        Opaque(),
        [Moody()],
        "x" * PAYLOAD_LIMIT,
        [10**5_000],
        Explosive(2030, 1, 1),
        object,
        range(3),
        msgspec.UNSET,
    ]
    + [b"x" * PAYLOAD_LIMIT, {"a": {"b": [INF]}}],
)
def test_a_result_that_cannot_be_stored_is_none_with_a_reason(value: Any) -> None:
    data, warning = Signature(two).encode_result(value)
    assert data is None
    assert warning
    assert len(warning) < 2_000
    assert warning.isprintable()


# --- people ---


@pytest.mark.spec("DATA-21")
def test_a_stored_text_that_no_longer_parses_is_shown_as_null() -> None:
    assert display(b'{"a":[1,2.5,null]}') == {"a": [1, 2.5, None]}
    for broken in (None, b"", b"{", b"\xff", b'"\xff"', b"[" * 100_000, b"9" * 9_000):
        assert display(broken) is None


# --- round trips ---

identifiers = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True).filter(lambda n: not keyword.iskeyword(n))
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
HINTED: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Any, plain),
    (int, st.integers()),
    (str, texts),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (bytes, st.binary(max_size=8)),
    (datetime, st.datetimes(timezones=st.just(UTC))),
    (date, st.dates()),
    (timedelta, st.timedeltas(min_value=timedelta(days=-9_999), max_value=timedelta(days=9_999))),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (Size, st.sampled_from(Size)),
    (int | None, st.integers() | st.none()),
    (list[Address], st.lists(st.builds(Address, texts, st.lists(texts, max_size=2)), max_size=2)),
    (dict[str, Point], st.dictionaries(texts, st.builds(Point, st.floats(0, 1), st.floats(0, 1)), max_size=2)),
    (tuple[int, str], st.tuples(st.integers(), texts)),
]
P = inspect.Parameter


@st.composite
def calls(draw: st.DrawFn) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """A function of any shape, and a call that fits it."""
    names = draw(st.lists(identifiers, max_size=6, unique=True))
    kinds = sorted(draw(st.sampled_from([P.POSITIONAL_ONLY, P.POSITIONAL_OR_KEYWORD, P.KEYWORD_ONLY])) for _ in names)
    optional = False
    parameters: list[inspect.Parameter] = []
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    hints: dict[str, Any] = {}
    by_position = True
    for name, kind in zip(names, kinds, strict=True):
        hint, values = draw(st.sampled_from(HINTED))
        optional = draw(st.booleans()) or (optional and kind is not P.KEYWORD_ONLY)
        hints[name] = hint
        parameters.append(P(name, kind, default=draw(values) if optional else P.empty))
        if optional and draw(st.booleans()):
            by_position = False  # from here on a positional argument would land in the wrong place
        elif kind is P.KEYWORD_ONLY or (kind is P.POSITIONAL_OR_KEYWORD and (not by_position or draw(st.booleans()))):
            by_position = False
            kwargs[name] = draw(values)
        elif by_position:
            args.append(draw(values))
    count = sum(p.kind is not P.KEYWORD_ONLY for p in parameters)
    if draw(st.booleans()):
        parameters.insert(count, P("rest_", P.VAR_POSITIONAL))
        hints["rest_"] = int
        if len(args) == count:
            args.extend(draw(st.lists(st.integers(), max_size=3)))
    if draw(st.booleans()):
        parameters.append(P("more_", P.VAR_KEYWORD))
        hints["more_"] = str
        extra = draw(st.dictionaries(identifiers, texts, max_size=2))
        kwargs.update({name: value for name, value in extra.items() if name not in names})

    def fn(*args: Any, **kwargs: Any) -> None: ...

    fn.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    fn.__annotations__ = hints
    return fn, tuple(args), kwargs


@pytest.mark.spec("DATA-16")
@given(call=calls())
def test_any_call_of_any_function_arrives_as_it_was_made(
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]],
) -> None:
    fn, args, kwargs = call
    made = inspect.signature(fn).bind(*args, **kwargs)
    signature = Signature(fn)
    payload = signature.encode(args, kwargs)
    check_json(payload)
    given_names = {n for n in made.arguments if n not in ("rest_", "more_")} | set(made.arguments.get("more_", ()))
    assert set(json.loads(payload)) - {"*"} == given_names
    called, named = signature.decode(payload)
    arrived = inspect.signature(fn).bind(*called, **named)
    made.apply_defaults()
    arrived.apply_defaults()
    assert arrived.arguments == made.arguments


@pytest.mark.spec("DATA-16")
@given(call=calls())
def test_the_slow_way_and_the_fast_way_agree(
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]],
) -> None:
    fn, args, kwargs = call
    signature = Signature(fn)
    payload = signature.encode(args, kwargs)
    assert signature.decode(payload) == signature._decode_parts(payload)


hostile = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(codec=None), max_size=2) | st.integers() | st.floats(), inner, max_size=3
        )
        | st.builds(Point, inner, inner)
        | st.tuples(inner)
    ),
    max_leaves=8,
)


@pytest.mark.spec("DATA-15", "DATA-16")
@given(value=hostile)
def test_a_python_value_is_either_refused_or_stored_without_change(value: Any) -> None:
    def sound(part: Any) -> bool:
        match part:
            case str():
                return "\0" not in part and not any("\ud800" <= c <= "\udfff" for c in part)
            case float():
                return part - part == 0
            case dict():
                return all(isinstance(k, str) and sound(k) for k in part) and all(map(sound, part.values()))
            case list() | tuple():
                return all(map(sound, part))
            case Point():
                return sound(part.x) and sound(part.y)
        return True

    try:
        payload = Signature(two).encode((value,), {})
    except InvalidPayload:
        assert not sound(value)
    else:
        assert sound(value)
        check_json(payload)
        assert msgspec.json.decode(payload)["a"] == msgspec.to_builtins(json_like(value))


def json_like(value: Any) -> Any:
    return json.loads(json.dumps(msgspec.to_builtins(value)))


@pytest.mark.spec("ENQUEUE-01")
def test_the_schema_of_a_call_has_every_argument_with_its_default() -> None:
    class Point(msgspec.Struct):
        x: int = 0

    class Odd:
        pass

    def work(at: Point, to: Point | None = None, n: int = 3, path: Any = Odd, *, raw: Any = "x") -> None: ...

    found = Signature(work).schema()
    assert (found["type"], found["required"]) == ("object", ["at"])
    assert list(found["properties"]) == ["at", "to", "n", "path", "raw"]
    assert found["properties"]["at"] == {"$ref": "#/$defs/at.Point"}
    assert found["properties"]["to"]["default"] is None
    assert found["properties"]["n"] == {"type": "integer", "default": 3}
    assert "default" not in found["properties"]["path"], "JSON has no form for it"
    assert found["$defs"].keys() == {"at.Point", "to.Point"}
    assert Signature(lambda *parts: parts, "variable").schema() == {}


@pytest.mark.spec("ENQUEUE-03")
def test_every_argument_that_cannot_be_decoded_is_named() -> None:
    def work(n: int, text: str, more: list[int] = []) -> None: ...  # noqa: B006 - never changed

    signature = Signature(work)
    assert signature.mistakes(b'{"n": 1, "text": "x"}') == {}
    wrong = signature.mistakes(b'{"n": "x", "more": ["y"]}')
    assert wrong.keys() == {"n", "text", "more"}
    assert wrong["text"] == "a required argument is missing"
    assert wrong["n"].startswith("Expected `int`, got `str`")
    assert list(signature.mistakes(b'{"n": 1, "text": "x", "other": 1}')) == [""]
    assert list(signature.mistakes(b"{")) == [""]

    def variable(*parts: int, **more: str) -> None: ...

    assert Signature(variable).mistakes(b'{"a": "b"}') == {}
    assert "work" not in Signature(variable).mistakes(b'{"a": 1}')[""]
