"""Who a job is for."""

from __future__ import annotations

import pytest

from stoker.model.origin import Origin, origin


@pytest.mark.spec("PEOPLE-01")
@pytest.mark.parametrize(
    "payload, found",
    [
        (b'{"principal_id": "a", "principal": "b", "user_id": 3, "correlation_id": "c"}', Origin("a", "c")),
        (b'{"principal_id": "", "principal": null, "user_id": 3, "request_id": true}', Origin("3", "true")),
        (
            b'{"principal_id": [1], "principal": {"a": 1}, "user_id": 10000000000000000001}',
            Origin("10000000000000000001"),
        ),
        (b'{"user_id": 1.50, "correlation_id": "\\u00e9"}', Origin("1.50", "\xe9")),
        (b'{"inner": {"user_id": 3}}', Origin()),
        (b'[{"user_id": 3}]', Origin()),
        (b'{"user_id": ', Origin()),
        (b'{"user_id": "\xff"}', Origin()),
    ],
)
def test_the_first_usable_value_is_taken(payload: bytes, found: Origin) -> None:
    assert origin(payload) == found
