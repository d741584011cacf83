from __future__ import annotations

import pytest

from stoker.model.identity import correlation, correlation_in, principal


@pytest.mark.spec("LOG-02")
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, None),
        ({"user_id": 7}, "7"),
        ({"principal_id": "", "principal": None, "user_id": "ada"}, "ada"),
        ({"principal_id": ["x"], "principal": {"id": 1}, "user_id": 1.5}, "1.5"),
        ({"principal": True, "user_id": "ada"}, "true"),
        ({"principal_id": False}, "false"),
        ({"nested": {"user_id": 7}}, None),
    ],
)
def test_the_first_usable_key_names_the_principal(values: dict[str, object], expected: str | None) -> None:
    assert principal(values) == expected


@pytest.mark.spec("LOG-02")
def test_correlation_has_keys_of_its_own() -> None:
    assert correlation({"request_id": "r", "user_id": "u"}) == "r"
    assert correlation({"request_id": "r", "correlation_id": "c"}) == "c"
    assert correlation({"user_id": "u"}) is None


@pytest.mark.spec("LOG-02")
def test_correlation_is_read_from_an_object_only() -> None:
    assert correlation_in(b'{"to":{"request_id":1},"request_id":7}') == "7"
    for payload in (b"[7]", b"null", b"{", b"\xff", b"{}"):
        assert correlation_in(payload) is None
