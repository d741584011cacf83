from __future__ import annotations

import pytest
from msgspec.structs import replace

from stoker.model import orders
from stoker.model.control import STOPPED, Presence
from stoker.model.errors import InvalidArgument, NotFound, WrongState
from stoker.model.orders import LAPSES, LARGEST_REPORT, Orders, StackReport, Stand, encode, ordered, read
from stoker.model.time import SECOND

NOW = 1_800_000_000_000_000


def presence(worker: str, **given: object) -> Presence:
    return Presence(**{"worker": worker, "host": "h", "pid": 7, "queues": {}, "seen_at": NOW} | given)  # type: ignore[arg-type]


@pytest.mark.spec("ORDER-06")
def test_each_order_is_taken_once_and_all_between_two_renewals_are() -> None:
    first = ordered(None, "w", "quiet", NOW)
    assert (orders.new_work(first, None, NOW), orders.new_stack(first, None, NOW)) == ("quiet", None)
    assert orders.new_work(first, first, NOW) is None
    both = ordered(first, "w", "stack", NOW + 5)
    assert (orders.new_work(both, None, NOW), orders.new_stack(both, None, NOW)) == ("quiet", NOW + 5)
    assert (orders.new_work(both, first, NOW), orders.new_stack(both, first, NOW)) == (None, NOW + 5)
    assert orders.new_stack(both, both, NOW) is None
    again = ordered(ordered(both, "w", "resume", NOW), "w", "stack", NOW)
    assert (orders.new_work(again, both, NOW), orders.new_stack(again, both, NOW)) == ("resume", NOW + 6), (
        "at the same instant"
    )
    assert ordered(again, "w", "quiet", NOW + 9).work_at == NOW + 9


@pytest.mark.spec("ORDER-09")
def test_an_order_that_is_not_taken_in_time_lapses() -> None:
    both = ordered(ordered(None, "w", "stop", NOW), "w", "stack", NOW)
    for later, taken in ((LAPSES, ("stop", NOW)), (LAPSES + 1, (None, None))):
        assert (orders.new_work(both, None, NOW + later), orders.new_stack(both, None, NOW + later)) == taken
    assert ordered(both, "w", "quiet", NOW + LAPSES + 1).work == "quiet"
    with pytest.raises(WrongState):
        ordered(both, "w", "quiet", NOW + LAPSES)


@pytest.mark.spec("ORDER-06")
def test_orders_are_read_as_they_were_stored_and_nonsense_is_none() -> None:
    stop = ordered(None, "w", "stop", NOW)
    assert read(encode(stop)) == stop == read(encode(stop).decode())
    assert read(None) is read(b"{") is read(b'{"worker": 1}') is None


@pytest.mark.spec("ORDER-04")
def test_a_worker_that_was_told_to_stop_takes_no_other_order_about_its_work() -> None:
    stop = ordered(None, "w", "stop", NOW)
    for verb in ("quiet", "resume", "stop"):
        with pytest.raises(WrongState, match="worker w is stopping"):
            ordered(stop, "w", verb, NOW + 1)
    assert ordered(stop, "w", "stack", NOW + 1).stack_at == NOW + 1
    with pytest.raises(WrongState, match="worker w is stopped, which 'stack' does not apply to"):
        orders.check_takes(presence("w", state=STOPPED), "stack")
    orders.check_takes(presence("w"), "stop")


@pytest.mark.spec("ORDER-04")
@pytest.mark.parametrize("given", ["5e.abcdef", "5e.ab", "ab", "ab…ef", "5e.a…f"])
def test_a_worker_is_found_by_what_fits_it_alone(given: str) -> None:
    known = [presence("5e.abcdef"), presence("5e.acdd"), presence("99.ffff"), presence("99.ffff.1")]
    assert orders.find(given, known).worker == "5e.abcdef"
    assert orders.find("99.ffff", known).worker == "99.ffff", "an id is itself"


@pytest.mark.spec("ORDER-04")
def test_what_fits_no_worker_or_several_is_refused() -> None:
    known = [presence(f"5e.a{n}") for n in range(5)]
    with pytest.raises(InvalidArgument, match=r"fits 5 workers, such as 5e.a0, 5e.a1, 5e.a2; type more of it"):
        orders.find("5e", known)
    for given in ("x", "", "…a1", "5e.a1…x"):
        with pytest.raises(NotFound, match="is not in the store"):
            orders.find(given, known)


@pytest.mark.spec("ORDER-04")
def test_an_order_to_a_silent_worker_says_what_becomes_of_it() -> None:
    assert orders.outlook(presence("w"), NOW) == ""
    said = orders.outlook(presence("w", lease=60 * SECOND), NOW + 40 * SECOND)
    assert said.startswith("Worker w has not shown itself for 40.0 s: it is frozen, dead or cut off from the store, or")
    assert said.endswith("which it may after the lease of 1 min, the order is dropped.")


@pytest.mark.spec("ORDER-03", "ORDER-05")
def test_a_report_has_a_largest_size_and_is_kept_for_a_while() -> None:
    stand = Stand(job="j", kind="send", place="the event loop", stack="x" * 30_000)
    told = orders.report("w", NOW, NOW + 1, [replace(stand, job=str(n)) for n in range(6)])
    assert ([one.job for one in told.stands], told.left_out) == (["0", "1", "2", "3"], 2)
    assert len(encode(told)) < LARGEST_REPORT + 1_000
    assert orders.report("w", NOW, NOW, []) == StackReport(worker="w", asked=NOW, at=NOW)
    assert orders.outdated([told], NOW + orders.KEPT + 1) == []
    assert orders.outdated([told], NOW + orders.KEPT + 2) == [told]
    assert Orders(worker="w").work is None
