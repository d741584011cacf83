"""Secrets are masked by the names beside them, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.model.job import Failure, Job, Options, Status
from stoker.model.redact import EVERYTHING_SHOWN, MASK, Redaction, is_secret

REDACTION = Redaction()


@pytest.mark.spec("REDACT-01")
@pytest.mark.parametrize(
    "name",
    ["password", "dbPassword", "dbpassword", "API_KEY", "apiKey", "apikey", "access-token", "Authorization", "cookie"]
    + ["card", "cardNumber", "CVV", "client_secret", "privateKey", "session_token", "credentials", "pwd"],
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret(name)


@pytest.mark.spec("REDACT-01")
@pytest.mark.parametrize("name", ["to", "key", "author", "cardinality", "max_tokens", "passenger", "tokenize", ""])
def test_other_names_are_left_alone(name: str) -> None:
    assert not is_secret(name)
    assert is_secret("salary_2026", frozenset({"salary"}))


@pytest.mark.spec("REDACT-02")
@pytest.mark.parametrize(
    "raw, masked",
    [
        (b'{"to": "a", "password":"x"}', b'{"to": "a", "password":"[hidden]"}'),
        (b'{ "a":[ {"token" : 12.50 , "n":1e3 }] }', b'{ "a":[ {"token" : "[hidden]" , "n":1e3 }] }'),
        (
            b'{"secret": {"a": [1, {"b": 2}]}, "c": 10000000000000000001}',
            b'{"secret": "[hidden]", "c": 10000000000000000001}',
        ),
        (
            b'{"secrets": ["password", "b"], "x": ["password", {"pin": null}]}',
            b'{"secrets": "[hidden]", "x": ["password", {"pin": null}]}',
        ),
        (b'{"pass\\u0077ord": "\\"}", "z": "\xc3\xa9"}', b'{"pass\\u0077ord": "[hidden]", "z": "\xc3\xa9"}'),
        (b'["password", "x"]', b'["password", "x"]'),
        (b"17", b"17"),
    ],
)
def test_only_the_bytes_of_masked_values_change(raw: bytes, masked: bytes) -> None:
    assert REDACTION.json(raw) == masked


@pytest.mark.spec("REDACT-02")
def test_what_is_no_json_is_masked_as_a_text() -> None:
    assert REDACTION.json(b'{"password": "x') == b'{"password": [hidden]'
    assert REDACTION.json(b"\xff password=x") == b"\xff password=[hidden]"


def _expected(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: MASK if item is not None and is_secret(name) else _expected(item) for name, item in value.items()}
    return [_expected(item) for item in value] if isinstance(value, list) else value


_names = st.sampled_from(["to", "password", "a_token", "card", "rest", "password\n", "é"]) | st.text(max_size=5)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_names, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.spec("REDACT-02")
@given(value=_values, indent=st.sampled_from([None, 2]), plain=st.booleans())
def test_masking_the_bytes_is_masking_the_value(value: Any, indent: int | None, plain: bool) -> None:
    raw = json.dumps(value, indent=indent, ensure_ascii=plain)
    assert json.loads(REDACTION.json(raw.encode())) == _expected(value)


@pytest.mark.spec("REDACT-03")
@pytest.mark.parametrize(
    "text, masked",
    [
        ("login failed: password=hunter2, user=ada", "login failed: password=[hidden], user=ada"),
        ("the password: ", "the password: "),
        ("Authorization: Bearer abc.def rest", "Authorization: [hidden] rest"),
        ("{'api_key': 'x y', 'n': 1}", "{'api_key': [hidden], 'n': 1}"),
        ("cannot reach redis://ada:s3cret@host:6379/0", "cannot reach redis://ada:[hidden]@host:6379/0"),
        ("ValueError: no such address: ada@example.org", "ValueError: no such address: ada@example.org"),
        (
            "1password=hidden --api-key=hidden b'token': 'hidden'",
            "1password=[hidden] --api-key=[hidden] b'token': [hidden]",
        ),
        ("x" * 5_000 + " a.b" * 5_000 + " password=hidden", "x" * 5_000 + " a.b" * 5_000 + " password=[hidden]"),
    ],
)
def test_texts_lose_what_is_assigned_to_a_secret_name(text: str, masked: str) -> None:
    assert REDACTION.text(text) == masked


@pytest.mark.spec("REDACT-04")
def test_every_part_of_a_job_is_masked() -> None:
    secret = "token=abc"
    job = Job(
        id=bytes(16),
        kind="send",
        queue="mail",
        payload=b'{"token":"abc"}',
        status=Status.DEAD,
        priority=0,
        attempts=1,
        base=0,
        budget=1,
        created_at=0,
        scheduled_at=0,
        options=Options(metadata={"token": "abc", "note": secret}),
        metadata={"exec_cookie": "abc", "empty_token": ""},
        last_error=secret,
        history=(Failure(1, 1, secret),),
        result=b'{"token":"abc"}',
        log=(secret,),
    )
    masked = REDACTION.job(job)
    assert b"abc" not in masked.payload + (masked.result or b"")
    assert "abc" not in str((masked.options, masked.metadata, masked.last_error, masked.history, masked.log))
    assert masked.metadata["empty_token"] == ""
    assert EVERYTHING_SHOWN.job(job) == job
    bare = replace(job, options=Options(), result=None, last_error=None)
    assert REDACTION.job(bare).last_error is None
