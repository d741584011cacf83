"""Markers: where they stand, and what is filled in for them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from stoker.model.errors import InvalidInput
from stoker.model.groups import LOOKED_AGAIN, into_group, is_held, kept_until, let_go, new_group
from stoker.model.job import (
    LARGEST_PAYLOAD,
    PARENT,
    Claim,
    Draft,
    MarkedDraft,
    Options,
    Status,
    chain,
    check_markers,
    group_text,
    pack,
)
from stoker.model.lifecycle import HELD, conclude
from stoker.model.markers import PREVIOUS, RESULTS, fill, is_marked, places, positions, stands, unmarked
from stoker.model.outcome import Done
from stoker.model.record import Record
from stoker.model.time import DAY, HOUR, MINUTE


def draft(number: int = 0, payload: bytes = b"{}", **options: Any) -> Draft:
    return Draft(number.to_bytes(16), f"job{number}", payload, options=Options(**options))


def claim(first: Draft) -> Claim:
    return Claim(
        *(first.job_id, first.kind, first.queue, first.payload, 1, 0, 5, "w", 1, 0, 0, 0), options=first.options
    )


@pytest.mark.spec("PASS-01")
@pytest.mark.parametrize(
    ("payload", "where", "filled"),
    [
        (b'{"n":"PREVIOUS"}', ("n",), b'{"n":[1]}'),
        (b'{"a": 1.50, "n":"PREVIOUS","m":"PREVIOUS"}', ("n", "m"), b'{"a":1.50,"n":[1],"m":[1]}'),
        (b'{"n":"PREVIOUS","m":"PREVIOUS"}', ("n",), b'{"n":[1],"m":"PREVIOUS"}'),
        (b'["PREVIOUS",2,"PREVIOUS"]', ("*0", "*2"), b"[[1],2,[1]]"),
        (b'{"*":[2,"PREVIOUS"],"n":"PREVIOUS"}', ("*1", "n"), b'{"*":[2,[1]],"n":[1]}'),
        (b'{"n":7}', ("n", "m", "*4"), b'{"n":7}'),
        (b"[7]", ("*0", "*1", "n"), b"[7]"),
        (b"null", ("n",), b"null"),
        (b"{no JSON", ("n",), b"{no JSON"),
    ],
)
def test_a_value_is_filled_in_where_the_marker_still_stands(
    payload: bytes, where: tuple[str, ...], filled: bytes
) -> None:
    assert fill(payload, where, PREVIOUS, b"[1]") == filled
    assert stands(payload, where, PREVIOUS) == (b"[1]" in filled)


@pytest.mark.spec("PASS-01")
def test_places_are_names_and_numbers() -> None:
    named = {"a": 1, "n": PREVIOUS, "*": (2, PREVIOUS, RESULTS)}
    assert places(named.items(), PREVIOUS) == ("n", "*1")
    assert positions([RESULTS, 2], RESULTS) == ("*0",)
    assert is_marked([1, PREVIOUS])
    assert not is_marked([1, "PREVIOUS"])
    assert [unmarked(value) for value in (1, RESULTS)] == [1, "RESULTS"]
    assert repr(PREVIOUS) == "PREVIOUS"


@pytest.mark.spec("PASS-04")
def test_no_text_can_be_made_of_a_marker() -> None:
    for make in (str, "{}".format):
        with pytest.raises(InvalidInput, match="RESULTS: stands for the results of a group's members, which is not"):
            make(RESULTS)
    assert PREVIOUS.misplaced == "PREVIOUS stands for a whole argument; it cannot be inside another value"


@pytest.mark.spec("PASS-14")
def test_what_cannot_be_made_of_a_marker_or_a_draft_says_what_to_write() -> None:
    marker: Any
    for marker in (PREVIOUS, RESULTS):
        uses: tuple[Callable[[], Any], ...] = (
            lambda: marker["x"],  # noqa: B023 - called here
            lambda: marker + 1,  # noqa: B023
            lambda: 1 + marker,  # noqa: B023
            lambda: marker < 1,  # noqa: B023
            lambda: int(marker),  # noqa: B023
            lambda: list(marker),  # noqa: B023
            lambda: sum(marker),  # noqa: B023
            lambda: len(marker),  # noqa: B023
        )
        whole = rf"{marker!r}: .* has no value yet; give it whole, as in task.draft\({marker!r}\), and .* handler"
        for use in uses:
            with pytest.raises(InvalidInput, match=whole):
                use()
        with pytest.raises(AttributeError, match=rf"{marker!r} stands for .* got {marker!r}.total$"):
            _ = marker.total
        assert marker and copy.copy(marker).name == marker.name
    with pytest.raises(InvalidInput, match=r"write chain\(first, second\), with PREVIOUS where"):
        _ = draft(1) | draft(2)  # type: ignore[operator]


@pytest.mark.spec("PASS-01", "PASS-02")
@pytest.mark.parametrize(("result", "payload"), [(b"5", b'{"n":5}'), (None, b'{"n":null}')])
def test_the_settlement_carries_the_link_with_the_result(result: bytes | None, payload: bytes) -> None:
    first = chain(
        draft(1), draft(2, b'{"n":"PREVIOUS"}', previous=("n",)), draft(3, b'{"n":"PREVIOUS"}', previous=("n",))
    )
    [link] = conclude(claim(first), Done(result)).followups
    assert (link.payload, link.options.previous) == (payload, ())
    assert link.options.metadata == {PARENT: draft(1).id}
    [last] = link.options.then
    assert (last.payload, last.options.previous) == (b'{"n":"PREVIOUS"}', ("n",))


@pytest.mark.spec("PASS-03")
def test_a_result_that_cannot_be_passed_on_ends_the_job_dead() -> None:
    first = draft(1).then(draft(2, b'{"n":"PREVIOUS"}', previous=("n",)), draft(3))
    lost = conclude(claim(first), Done(None, "NaN has no form in JSON"))
    assert (lost.status, lost.followups) == (Status.DEAD, ())
    assert lost.error == (
        "its result cannot be passed on to the job behind it (job2): NaN has no form in JSON; nothing behind it was "
        "stored"
    )
    large = conclude(claim(first), Done(b'"' + b"x" * (LARGEST_PAYLOAD - 4) + b'"'))
    assert large.status is Status.DEAD
    assert f"with it the payload must be at most {LARGEST_PAYLOAD} bytes" in (large.error or "")
    plain = conclude(claim(draft(1).then(draft(3))), Done(None, "NaN"))
    assert (plain.status, len(plain.followups)) == (Status.DONE, 1)


@pytest.mark.spec("PASS-04")
def test_a_marker_needs_a_job_before_it_or_a_group() -> None:
    previous, results = draft(2, previous=("n",)), draft(3, results=("n",))
    for refused, why in ((previous, "PREVIOUS: .*use chain"), (results, "RESULTS: .*use then=")):
        with pytest.raises(InvalidInput, match=why):
            check_markers(refused)
    check_markers(draft(1).then(previous))
    with pytest.raises(InvalidInput, match=r"RESULTS: .*a link has none; use PREVIOUS"):
        draft(1).then(results)
    with pytest.raises(InvalidInput, match=r"PREVIOUS: .*which has keep=0"):
        draft(1, keep=0).then(previous)
    assert new_group(bytes(16), then=results).then is not None
    with pytest.raises(InvalidInput, match=r"PREVIOUS: .*on_finish= has none; use RESULTS"):
        new_group(bytes(16), on_finish=previous)


@pytest.mark.spec("PASS-13")
def test_a_job_without_a_marker_stores_the_bytes_of_before() -> None:
    assert pack(Options()) is None
    assert pack(Options(keep=1, group=bytes(16))) == b'{"keep":1,"group":"%s"}' % group_text(bytes(16)).encode()
    settled = conclude(claim(draft(1, timeout=5).then(draft(2, b'{"a": 1}'))), Done(b"5"))
    assert [link.payload for link in settled.followups] == [b'{"a": 1}']


@pytest.mark.spec("PASS-12")
def test_an_awaited_member_is_held_and_let_go() -> None:
    """Its own `keep` counts when the group lets it go, else that of the group."""
    for keep, kept in ((0, 0), (HOUR, HOUR), (None, DAY)):
        [member] = into_group(bytes(16), [draft(1, keep=keep).then(draft(2))], awaited=True)
        assert member.options.then[0].options.awaited is True
        settled = conclude(claim(member), Done(b"5"))
        assert settled.keep == HELD
        record = replace(Record.drafted(member, 0), status=Status.DONE, finished_at=MINUTE, expires_at=MINUTE + HELD)
        assert is_held(record)
        group = replace(new_group(bytes(16), then=draft(3)), closed_at=HOUR, expires_at=HOUR + DAY)
        assert let_go(record, group).expires_at == MINUTE + kept
        assert kept_until([record.expires_at], DAY) == DAY + LOOKED_AGAIN
        assert group.calls_back
    assert not new_group(bytes(16)).calls_back


@pytest.mark.spec("PASS-05")
def test_a_marked_draft_is_compared_with_the_kind_before_it() -> None:
    asked: list[tuple[str | None, bool]] = []
    marked = MarkedDraft.of(draft(2, previous=("n",)), lambda kind, may_fail: asked.append((kind, may_fail)))
    chain(draft(1), marked, draft(3))
    marked.check(None, may_fail=True)
    assert asked == [("job1", False), (None, True)]
    copy = draft(1).then(marked).options.then[0]
    draft(4).then(copy)
    assert len(asked) == 3, "a copy has lost it"
