"""Roles and the queues they reach."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.access import (
    ROLES,
    Identity,
    Role,
    check_masked_search,
    check_search,
    check_search_to_change,
    includes,
    is_loopback,
    searching,
)
from stoker.model.errors import Forbidden, InvalidInput
from stoker.model.filter import Filter
from stoker.model.redact import EVERYTHING_SHOWN, Redaction


@pytest.mark.spec("SEARCH-02")
@pytest.mark.parametrize(
    ("words", "read", "change"),
    [
        ("is:dead queue:mail tenant:acme", "read", "read"),
        ("error:timeout", "read", "admin"),
        ("timeout", "read", "admin"),
        ("payload:4111", "operate", "admin"),
    ],
)
def test_a_search_into_what_is_hidden_needs_a_role(words: str, read: Role, change: Role) -> None:
    for role in ROLES:
        for check, least in ((check_search, read), (check_search_to_change, change)):
            if includes(role, least):
                check(role, Filter.parse(words))
            else:
                with pytest.raises(Forbidden, match=f"needs the role {least}, and this is {role}"):
                    check(role, Filter.parse(words))


@pytest.mark.spec("SEARCH-09")
def test_metadata_that_is_shown_masked_is_not_looked_for() -> None:
    for role in ROLES:
        for shown in ("meta:customer=42", "meta:password=", "is:dead"):
            check_masked_search(role, Filter.parse(shown), Redaction())
        check_masked_search(role, Filter.parse("meta:password=hunter2"), EVERYTHING_SHOWN)
        if role == "admin":
            check_masked_search(role, Filter.parse("meta:password=hunter2"), Redaction())
            continue
        for masked in ("meta:password=hunter2", 'meta:"note=password=hunter2"'):
            with pytest.raises(Forbidden, match=f"is masked, needs the role admin, and this is {role}"):
                check_masked_search(role, Filter.parse(masked), Redaction())


@pytest.mark.spec("ACCESS-01")
def test_a_role_includes_those_below_it() -> None:
    can = {role: [other for other in ROLES if Identity("ann", role).may(other)] for role in ROLES}
    assert can == {"read": ["read"], "operate": ["read", "operate"], "admin": ["read", "operate", "admin"]}


@pytest.mark.spec("ACCESS-02")
def test_an_identity_may_be_limited_to_queues() -> None:
    limited = Identity("ci", "operate", frozenset({"mail"}))
    assert (limited.reaches("mail"), limited.reaches("mail2"), limited.reaches_all) == (True, False, False)
    assert (Identity("ann").reaches("mail"), Identity("ann").reaches_all) == (True, True)


@pytest.mark.spec("SEARCH-06")
def test_an_identity_that_is_limited_to_queues_searches_as_operate_at_most() -> None:
    assert [searching(role, frozenset()) for role in ROLES] == ["read", "operate", "admin"]
    limited = [searching(role, frozenset({"mail"})) for role in ROLES]
    assert limited == ["read", "operate", "operate"]


@pytest.mark.spec("ACCESS-03")
@pytest.mark.parametrize("given", [("",), ("x" * 201,), (7,), ("ann", "root"), ("ann", "READ")])
def test_what_is_no_identity_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput):
        Identity(*given)


@pytest.mark.spec("ACCESS-01")
@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"])
def test_addresses_of_the_own_machine(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.spec("ACCESS-01")
@pytest.mark.parametrize("address", ["10.0.0.1", "::2", "example.com", "", "0.0.0.0"])
def test_addresses_that_others_reach(address: str) -> None:
    assert is_loopback(address) is False
