"""Secrets are masked by the names beside them, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.model.errors import InvalidInput
from stoker.model.job import Failure, Job, Options, Status
from stoker.model.redact import EVERYTHING_SHOWN, MASK, Redaction, Secrecy, is_secret, secrecy, with_secrets

REDACTION = Redaction()


ALONE = (
    "pass pwd pw pin otp totp auth oauth jwt bearer mnemonic signature card cvv cvc ccv iban bic ssn dsn csrf xsrf sid "
    "sessionid password passwords passwd passphrase passcode kennwort passwort secret secrets token credential "
    "credentials authorization cookie cookies apikey apikeys api_key access_key private_key secret_key encryption_key "
    "signing_key ssh_key rsa_key aes_key hmac_key master_key stripe_key service_key license_key private_pem session_id "
    "tax_id database_url db_url webhook_url connection_string conn_string connection_str conn_str account_number "
    "routing_number security_number mfa_code recovery_code backup_code seed_phrase 2fa mot_de_passe"
)


@pytest.mark.spec("REDACT-01")
@pytest.mark.parametrize("name", ALONE.split())
def test_every_name_of_a_secret_hides_texts_and_numbers(name: str) -> None:
    assert secrecy(name) is Secrecy.ALL
    assert secrecy(f"my_{name}") is Secrecy.ALL


@pytest.mark.spec("REDACT-01")
@pytest.mark.parametrize(
    "name",
    ["password", "dbPassword", "dbpassword", "API_KEY", "apiKey", "apikey", "access-token", "Authorization", "cookie"]
    + ["card", "cardNumber", "CVV", "client_secret", "privateKey", "session_token", "credentials", "pwd"],
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret(name)


FURTHER = """passwords passcode pw tokens
access_tokens apikeys ssh_key rsa_key aes_key master_key stripe_key service_key
license_key hmac_key private_pem session session_id sessionid sid csrf xsrf dsn database_url connection_string
conn_str pan account_number routing_number bic social_security_number tax_id totp mfa_code 2fa recovery_codes
backup_codes seed_phrase mnemonic salt webhook_url oauth kennwort passwort mot_de_passe"""


@pytest.mark.spec("REDACT-05")
@pytest.mark.parametrize("name", FURTHER.split())
def test_further_names_of_secrets_are_known(name: str) -> None:
    camel = "".join(word.capitalize() for word in name.split("_"))
    for spelled in (name, name.upper(), name.replace("_", "-"), camel, camel[0].lower() + camel[1:], f"x_{name}"):
        assert is_secret(spelled), spelled
        assert REDACTION.json(json.dumps({spelled: "s3cret"}).encode()) == json.dumps({spelled: MASK}).encode()
        assert REDACTION.values({spelled: "s3cret"}) == {spelled: MASK}
        assert REDACTION.text(f"{spelled}=s3cret") == f"{spelled}={MASK}"


@pytest.mark.spec("REDACT-05")
@pytest.mark.parametrize("name", ["tokens", "max_tokens", "session", "sessionActive", "pan", "salt"])
def test_numbers_and_booleans_stay_where_they_are_no_secret(name: str) -> None:
    for value in (512, -1.5, True, False, None, {"prompt": 5, "done": True}, [1, 2]):
        raw = json.dumps({name: value}).encode()
        assert REDACTION.json(raw) == raw
    raw = json.dumps({name: {"a": ["s3cret", 1], "b": {"s3cret": "s3cret"}}, "c": "d"}).encode()
    shown = {name: {"a": [MASK, 1], "b": {"s3cret": MASK}}, "c": "d"}
    assert json.loads(REDACTION.json(raw)) == shown
    assert json.loads(REDACTION.json(json.dumps({"token": {name: 5}, "e": {name: {"pin": 5}}}).encode())) == {
        "token": MASK,
        "e": {name: {"pin": MASK}},
    }
    assert REDACTION.text(f"{name}=512, {name}: true") == f"{name}=512, {name}: true"
    assert REDACTION.values({name: "512"}) == {name: "512"}
    card = "4111111111111111"
    assert REDACTION.values({name: card}) == {name: MASK}, "a text of so many digits may be a card's number"
    assert REDACTION.text(f"{name}='{card}'") == f"{name}={MASK}"


@pytest.mark.spec("REDACT-05")
@pytest.mark.parametrize(
    "text",
    [
        "CardDeclined: card ending 0726",
        "shop.payments.CardDeclined: card ending 0726\n  File x",
        "PasswordError: short",
        "InvalidToken: it has expired",
        "TokenExpired: at noon",
    ],
)
def test_a_class_is_no_name_beside_a_value(text: str) -> None:
    assert REDACTION.text(text) == text


NOUNS = "Code Data Hash Id Key No Number Phrase Pem String Url Value Ids Numbers"


@pytest.mark.spec("REDACT-05")
@pytest.mark.parametrize(
    "text, masked",
    [
        ("AccessToken: abc def", "AccessToken: [hidden] def"),
        ("SecretAccessKey: abc", "SecretAccessKey: [hidden]"),
        ("CardNumber: 4111 1111", "CardNumber: [hidden] 1111"),
        ("CardDeclined: 4111111111111111", "CardDeclined: [hidden]"),
        ("CardDeclined=card ending", "CardDeclined=[hidden] ending"),
        ('"CardDeclined": card ending', '"CardDeclined": [hidden] ending'),
        *((f"Card{noun}: 4111 1111", f"Card{noun}: [hidden] 1111") for noun in NOUNS.split()),
        ("Password: open sesame", "Password: [hidden] sesame"),
        ("cardDeclined: card ending", "cardDeclined: [hidden] ending"),
    ],
)
def test_what_may_be_the_name_of_a_value_is_masked(text: str, masked: str) -> None:
    assert REDACTION.text(text) == masked


@pytest.mark.spec("REDACT-06")
@pytest.mark.parametrize(
    "raw, masked",
    [
        ('{"to": "postgres://ada:s3cret@db/shop"}', '{"to": "postgres://ada:[hidden]@db/shop"}'),
        ('["a", "see redis://:s3cret@host and http://b"]', '["a", "see redis://:[hidden]@host and http://b"]'),
        ('"https:\\/\\/ada:s3cret@host"', '"https://ada:[hidden]@host"'),
        ('{"ftp://ada:s3cret@host": 1}', '{"ftp://ada:[hidden]@host": 1}'),
        ('"http:\\u002f/ada:s3cret@h\\ud800"', '"http://ada:[hidden]@h\\ud800"'),
        ('["http://example.org/a:b", "a\\nb", "x@y"]', '["http://example.org/a:b", "a\\nb", "x@y"]'),
        ('{"token": {"ftp://ada:s3cret@host": "ftp://ada:s3cret@host"}}', '{"token": "[hidden]"}'),
    ],
)
def test_addresses_in_json_lose_their_passwords(raw: str, masked: str) -> None:
    assert REDACTION.json(raw.encode()) == masked.encode()


@pytest.mark.spec("REDACT-01")
@pytest.mark.parametrize(
    "name", ["to", "key", "author", "cardinality", "passenger", "tokenize", "id", "url", "code", ""]
)
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


def _expected(value: Any, *, texts: bool = False) -> Any:
    if isinstance(value, dict):
        return {
            name: MASK
            if item is not None and secrecy(name) is Secrecy.ALL
            else _expected(item, texts=texts or is_secret(name))
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_expected(item, texts=texts) for item in value]
    return MASK if texts and isinstance(value, str) else value


_names = st.sampled_from(["to", "password", "a_token", "card", "tokens", "pan", "rest", "password\n", "é"]) | st.text(
    max_size=5
)
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
        ("cannot reach redis://ada:s3c@ret@host/0?a=b@c", "cannot reach redis://ada:[hidden]@host/0?a=b@c"),
        ("ValueError: {'card': {'number': '4111', 'cvv': (1, ')')}, 'n': 1}", "ValueError: {'card': [hidden], 'n': 1}"),
        ("passwords: ['a', \"b]\", 'c\\'d'] rest", "passwords: [hidden] rest"),
        ("User(password=SecretStr('x y'), name='ada')", "User(password=[hidden], name='ada')"),
        ("token=(abc, don't\nnext", "token=[hidden]\nnext"),
        ("token={[(" * 20_000, "token=[hidden]"),
        ("TokenError: (" * 20_000, "TokenError: (" * 20_000),
        ('token=("' + '\\"' * 30_000, "token=[hidden]"),
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
    row = REDACTION.listed(job)
    assert (row.payload, row.result, row.history, row.log) == (b"", None, (), ()), "no row of a list shows these"
    assert (row.last_error, row.metadata) == (masked.last_error, masked.metadata)


STORED = b'{"to": "ada", "api_key": "k-1", "deep": [{"token": "t-1", "n": 1.50}, {"n": 2}], "dsn": "pg://u:pw@h/d"}'


@pytest.mark.spec("REDACT-08")
@pytest.mark.parametrize("may_change", [False, True])
def test_masked_values_that_come_back_unchanged_are_kept(may_change: bool) -> None:
    shown = Redaction().json(STORED)
    assert b"k-1" not in shown
    kept = with_secrets(STORED, shown, Redaction(), may_change=may_change)
    assert json.loads(kept) == json.loads(STORED)
    edited = shown.replace(b"ada", b"bob").replace(b"1.50", b"2.50").replace(b'{"n": 2}', b'{"n": 3}, {"n": 1e400}')
    kept = with_secrets(STORED, edited, Redaction(), may_change=may_change)
    for part in (b'"to": "bob"', b'"api_key": "k-1"', b'"token": "t-1"', b'"n": 2.50', b'{"n": 1e400}', b"u:pw@h"):
        assert part in kept
    assert MASK.encode() not in kept
    assert with_secrets(b'{"a": 1.0}', b'{"a":  2.00}', Redaction(), may_change=may_change) == b'{"a":  2.00}'


@pytest.mark.spec("REDACT-08")
@pytest.mark.parametrize(
    ("before", "after", "path"),
    [
        (b'"api_key": "[hidden]"', b'"api_key": "mine"', "payload.api_key"),
        (b'"api_key": "[hidden]"', b'"api_key": "k-1"', "payload.api_key"),
        (b'"api_key": "[hidden]", ', b"", "payload.api_key"),
        (b'"token": "[hidden]"', b'"token": null', r"payload.deep\[0\].token"),
        (b'[{"token": "[hidden]", "n": 1.50}, {"n": 2}]', b"[]", r"payload.deep\[0\]"),
        (b'[{"token": "[hidden]", "n": 1.50}, {"n": 2}]', b"7", "payload.deep"),
    ],
)
def test_a_masked_value_that_was_changed_is_refused_by_name(before: bytes, after: bytes, path: str) -> None:
    """A right guess as well: else whoever may edit could try one after the other."""
    given = Redaction().json(STORED).replace(before, after)
    assert given != Redaction().json(STORED)
    with pytest.raises(InvalidInput, match=rf"^{path}: must come back as"):
        with_secrets(STORED, given, Redaction(), may_change=False)
    changed = json.loads(with_secrets(STORED, given, Redaction(), may_change=True))
    assert (changed == json.loads(STORED)) is (after == b'"api_key": "k-1"')


@pytest.mark.spec("REDACT-08")
def test_a_stored_payload_that_cannot_be_read_gives_nothing_back() -> None:
    assert with_secrets(b"{password=x", b'{"to": "bob"}', Redaction(), may_change=False) == b'{"to": "bob"}'


@pytest.mark.spec("REDACT-08")
def test_a_name_that_an_edit_adds_is_stored_as_it_came() -> None:
    given = b'{"a": 1, "api_key": "[hidden]", "b": 2}'
    kept = with_secrets(b'{"a": 1, "api_key": "k-1"}', given, Redaction(), may_change=False)
    assert json.loads(kept) == {"a": 1, "api_key": "k-1", "b": 2}


@pytest.mark.spec("REDACT-01")
def test_an_address_whose_sign_is_escaped_loses_its_password_too() -> None:
    assert b"s3cret" not in REDACTION.json(b'{"to": "postgres://u:s3cret\\u0040host/db"}')


@pytest.mark.spec("REDACT-01")
def test_behind_the_name_of_an_error_secrets_are_masked_as_well() -> None:
    text = "CardDeclined: card ending 0726\nCardError: no card was given, password=s3cret"
    assert REDACTION.text(text) == text.replace("s3cret", MASK)
