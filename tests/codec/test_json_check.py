"""`check_json` against an oracle built in another way: parse with msgspec, then look at what was parsed."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.codec.json_check import DEPTH_LIMIT, DIGITS_LIMIT, PAYLOAD_LIMIT, check_json, depth
from stoker.model.errors import InvalidInput, InvalidPayload, PayloadTooLarge, StokerError


def accepted(data: bytes) -> bool:
    try:
        check_json(data)
    except InvalidPayload:
        return False
    return True


def nested(levels: int, opening: bytes = b"[", closing: bytes = b"]", inside: bytes = b"") -> bytes:
    return opening * levels + inside + closing * levels


@pytest.mark.spec("DATA-15")
@pytest.mark.parametrize(
    "data",
    [b"null", b"[]", b"{}", b" {\n}\t\r", b"-0", b"1e5", b"1E-400", b'"\xf0\x9f\x98\x80"', b'"\\ud83d\\ude00"']
    + [b'"\\\\u0000"', b'"\\\\ud800"', b'"\x7f"', b'"\\/\\b\\f"', b'{"a":{"a":1},"b":[{"a":2}]}', b'{"":0}'],
)
def test_json_within_the_limits_is_accepted(data: bytes) -> None:
    check_json(data)


@pytest.mark.spec("DATA-15")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"nul",
        b"[1,]",
        b'{"a":1,}',
        b"[1 2]",
        b"{1:2}",
        b"{'a':1}",
        b"01",
        b"1.",
        b".5",
        b"+1",
        b"0x1",
        b"1 2",
    ]
    + [b"\xef\xbb\xbf1", b'"a\nb"', b'"\x00"', b'"\\x41"', b'"\\u12"', b'"a', b"]", b"[}", b"[", b"// c\n1", b"True"],
)
def test_anything_but_json_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidPayload, match=r"payload: .*Nothing was stored"):
        check_json(data)


@pytest.mark.spec("DATA-08", "DATA-15")
@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400", "-1e309", "[NaN]", '{"a":Infinity}'])
def test_numbers_that_are_not_finite_are_refused(text: str) -> None:
    with pytest.raises(InvalidPayload, match=r"which is not JSON|beyond the range of a float"):
        check_json(text.encode())


@pytest.mark.spec("DATA-14")
@pytest.mark.parametrize("text", ['{"a":1,"a":2}', '[{"x":{"a":1,"b":2,"a":1}}]', '{"a":1,"\\u0061":2}', '{"":1,"":1}'])
def test_a_key_twice_in_one_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidPayload, match="twice in one object"):
        check_json(text.encode())


@pytest.mark.spec("DATA-10")
@pytest.mark.parametrize("text", ['"\\u0000"', '{"a\\u0000":1}', '["x",["y\\\\\\u0000"]]'])
def test_nul_is_refused(text: str) -> None:
    with pytest.raises(InvalidPayload, match="NUL"):
        check_json(text.encode())


@pytest.mark.spec("DATA-10")
@pytest.mark.parametrize(
    "text",
    [
        '"\\ud800"',
        '"\\uDFFF"',
        '"\\ud83d\\ud83d\\ude00"',
        '"\\ude00\\ud83d"',
        '"\\ud83d \\ude00"',
        '["\\ud83d","\\ude00"]',
    ]
    + ['{"\\ud800":1}', '"\\ud83d\\n"', '"\\ud83d\\\\ude00"'],
)
def test_half_of_a_surrogate_pair_is_refused(text: str) -> None:
    with pytest.raises(InvalidPayload, match="surrogate"):
        check_json(text.encode())


@pytest.mark.spec("DATA-10", "DATA-15")
@pytest.mark.parametrize(
    "data", [b'"\xed\xa0\x80"', b'"\xff"', b'"\xc0\x80"', "[1]".encode("utf-16"), "[1]".encode("utf-32")]
)
def test_text_that_is_not_utf8_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidPayload, match=r"UTF-8|not JSON"):
        check_json(data)


@pytest.mark.spec("DATA-11")
def test_depth_ends_at_the_limit() -> None:
    check_json(nested(DEPTH_LIMIT))
    check_json(nested(DEPTH_LIMIT, b'{"a":', b"}", b"1"))
    check_json(b'["' + b"[" * 1_000 + b'\\"",[' + b"]" * 1 + b"]")  # brackets in a string are text
    for levels in (DEPTH_LIMIT + 1, 5_000, 100_000):
        for data in (nested(levels), nested(levels, b'{"a":', b"}", b"1"), b"[" * levels):
            with pytest.raises(InvalidPayload, match="deeper than 64"):
                check_json(data)


@pytest.mark.spec("DATA-12")
def test_size_ends_at_the_limit() -> None:
    check_json(b'"' + b"x" * (PAYLOAD_LIMIT - 2) + b'"')
    with pytest.raises(PayloadTooLarge, match="1,048,576 bytes"):
        check_json(b'"' + b"x" * (PAYLOAD_LIMIT - 1) + b'"')
    with pytest.raises(PayloadTooLarge):
        check_json(b"[1, 2]", limit=5)


@pytest.mark.spec("DATA-13")
def test_integers_end_at_the_limit() -> None:
    check_json(b"9" * DIGITS_LIMIT)
    check_json(b"-" + b"9" * (DIGITS_LIMIT - 1))
    check_json(b'"' + b"9" * 9_000 + b'"')
    check_json(b"0." + b"9" * 9_000)
    for data in (b"9" * (DIGITS_LIMIT + 1), b"-" + b"9" * DIGITS_LIMIT, b'{"a":[' + b"1" * 100_000 + b"]}"):
        with pytest.raises(InvalidPayload, match="4,300"):
            check_json(data)


@pytest.mark.spec("DATA-15")
@pytest.mark.parametrize(
    "data", [b'\\"' * 400_000, b'"' * 800_001, b"[]," * 300_000, b'{"a":' * 190_000, b"\\u00" * 250_000]
)
def test_the_work_is_linear_whatever_the_input(data: bytes) -> None:
    assert not accepted(data)  # a quadratic scan would take minutes and meet the suite's timeout


def test_a_refusal_is_a_value_error_that_names_the_field_and_shows_little() -> None:
    with pytest.raises(InvalidPayload) as caught:
        check_json(b"[" + b"1," * 100_000, "body")
    assert isinstance(caught.value, InvalidInput | StokerError | ValueError)
    assert caught.value.field == "body"
    assert len(str(caught.value)) < 300


# --- the oracle ---

texts = st.text(st.characters(codec=None), max_size=5)  # surrogates and NUL included
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def fine(value: Any) -> bool:
    """May this Python value, written by `json`, enter a store? Said by a walk over the value."""
    match value:
        case str():
            return "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)
        case float():
            return math.isfinite(value)
        case int() | None:
            return True
        case list():
            return all(map(fine, value))
        case dict():
            return all(map(fine, value)) and all(map(fine, value.values()))
    raise AssertionError(value)


def written(value: Any, ascii_only: bool) -> bytes:
    """JSON as Python's own writer makes it, which writes everything; astral pairs must not merge from two halves."""
    match value:
        case list():
            return b"[" + b", ".join(written(v, ascii_only) for v in value) + b"]"
        case dict():
            return (
                b"{"
                + b",".join(written(k, ascii_only) + b":" + written(v, ascii_only) for k, v in value.items())
                + b"}"
            )
    return json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


def halves_meet(value: Any) -> bool:
    """Two halves side by side become one whole character once escaped; the oracle cannot tell them apart."""
    if isinstance(value, str):
        return any("\ud800" <= a <= "\udbff" and "\udc00" <= b <= "\udfff" for a, b in pairwise(value))
    if isinstance(value, dict):
        return any(map(halves_meet, value)) or any(map(halves_meet, value.values()))
    return isinstance(value, list) and any(map(halves_meet, value))


@pytest.mark.spec("DATA-15")
@given(value=values, ascii_only=st.booleans())
@example(value=["\0"], ascii_only=True)
@example(value={"\ud800": 1}, ascii_only=False)
@example(value=[float("nan")], ascii_only=True)
def test_check_json_accepts_exactly_what_the_oracle_accepts(value: Any, ascii_only: bool) -> None:
    if halves_meet(value):
        return
    assert accepted(written(value, ascii_only)) is fine(value)


@pytest.mark.spec("DATA-15")
@given(value=values, ascii_only=st.booleans())
def test_whatever_is_accepted_can_be_decoded(value: Any, ascii_only: bool) -> None:
    data = written(value, ascii_only)
    if accepted(data):
        msgspec.json.decode(data)


fragments = st.lists(
    st.sampled_from(
        [
            b"[",
            b"]",
            b"{",
            b"}",
            b",",
            b":",
            b'"',
            b"\\",
            b"\\u",
            b"0000",
            b"d83d",
            b"de00",
            b"1",
            b"-",
            b".",
            b"e",
            b"9e999",
        ]
        + [b"null", b"NaN", b" ", b"\x00", b"\xff", b'"a"', b'"a":', b"\xed\xa0\x80", b"\xc3\xa9"]
    ),
    max_size=14,
).map(b"".join)


def names_a_key_twice(data: bytes) -> bool:
    pairs: list[list[tuple[str, Any]]] = []
    json.loads(data, object_pairs_hook=pairs.append)
    return any(len({key for key, _ in found}) < len(found) for found in pairs)


@pytest.mark.spec("DATA-15")
@given(data=fragments | st.binary(max_size=12))
def test_noise_gets_the_verdict_of_msgspec_or_a_stricter_one(data: bytes) -> None:
    try:
        parsed = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        assert not accepted(data)
    else:
        assert accepted(data) is (fine(parsed) and not names_a_key_twice(data))


@pytest.mark.spec("DATA-11")
@given(value=st.recursive(st.just(""), lambda inner: st.lists(inner | st.just('["}\\'), max_size=3), max_leaves=20))
def test_depth_is_the_depth_of_the_tree(value: Any) -> None:
    def measured(tree: Any) -> int:
        return 1 + max(map(measured, tree), default=0) if isinstance(tree, list) else 0

    # With so many empty lists before it the count of brackets alone never settles the question.
    exact = measured(value)
    data = b"[" + b"[]," * 100 + json.dumps(value).encode() + b"]"
    assert depth(data, 100) == 1 + max(exact, 1)
