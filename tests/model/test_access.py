"""Roles and the queues they reach."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.access import ROLES, Identity
from stoker.model.errors import InvalidInput


@pytest.mark.spec("ACCESS-01")
def test_a_role_includes_those_below_it() -> None:
    can = {role: [other for other in ROLES if Identity("ann", role).may(other)] for role in ROLES}
    assert can == {"read": ["read"], "operate": ["read", "operate"], "admin": ["read", "operate", "admin"]}


@pytest.mark.spec("ACCESS-02")
def test_an_identity_may_be_limited_to_queues() -> None:
    limited = Identity("ci", "operate", frozenset({"mail"}))
    assert (limited.reaches("mail"), limited.reaches("mail2"), limited.reaches_all) == (True, False, False)
    assert (Identity("ann").reaches("mail"), Identity("ann").reaches_all) == (True, True)


@pytest.mark.spec("ACCESS-03")
@pytest.mark.parametrize("given", [("",), ("x" * 201,), (7,), ("ann", "root"), ("ann", "READ")])
def test_what_is_no_identity_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput):
        Identity(*given)
