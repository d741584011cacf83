"""Who a job is for."""

from __future__ import annotations

import pytest

from stoker.model.origin import Origin, origin, trace_id


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
        (b'{"principal": "b", "user_id": 3}', Origin("b")),
        (b'{"user_id": 1.50, "correlation_id": "\\u00e9"}', Origin("1.50", "\xe9")),
        (b'{"inner": {"user_id": 3}}', Origin()),
        (b'[{"user_id": 3}]', Origin()),
        (b'{"user_id": ', Origin()),
        (b'{"user_id": "\xff"}', Origin()),
    ],
)
def test_the_first_usable_value_is_taken(payload: bytes, found: Origin) -> None:
    assert origin(payload) == found


@pytest.mark.spec("PEOPLE-02")
def test_metadata_go_before_arguments_for_the_correlation() -> None:
    payload = b'{"user_id": 3, "correlation_id": "of the payload"}'
    assert origin(payload, {"request_id": "r", "user_id": "7"}) == Origin("3", "r")
    assert origin(payload, {"correlation_id": "c", "request_id": "r"}) == Origin("3", "c")
    assert origin(payload, {"correlation_id": ""}) == origin(payload, {}) == Origin("3", "of the payload")
    assert origin(b"[]", {"request_id": "r"}) == Origin(None, "r")


@pytest.mark.spec("TRACE-11")
def test_the_trace_of_a_caller_is_read_from_its_mark() -> None:
    mark = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert trace_id({"traceparent": mark}) == trace_id({"exec_traceparent": mark}, "exec_traceparent") == mark[3:35]
    for metadata in (None, {}, {"traceparent": "mine"}):
        assert trace_id(metadata) is None
