"""spec: FILTER-01 FILTER-02 FILTER-03 FILTER-04 FILTER-05 FILTER-06"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model import ids
from stoker.model.filter import DUE, VIEWS, Filter, InvalidFilter, as_value, meta_of, moment_of
from stoker.model.job import ACTIVE, FINISHED, Draft, Job, Status
from stoker.model.names import Names
from stoker.model.query import ORDERS, Query
from stoker.model.record import Record
from stoker.model.same_error import fingerprint_of
from stoker.model.time import DAY, HOUR, MINUTE, SECOND, instant

NOW = 1_763_300_000 * SECOND
JOB = "0193b0f0-0000-7000-8000-000000000001"
KNOWN = Names(frozenset({"mail", "mail.bulk", "default"}), frozenset({"send", "send_all", "billing.charge"}))


def query(text: str) -> Query:
    found = Filter.parse(text).query(NOW, KNOWN)
    assert found is not None, "its names match something"
    return found


# --- reading and writing ---

text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
single_views = sorted(set(VIEWS) - set(DUE))
filters = st.builds(
    Filter,
    views=st.lists(st.sampled_from(single_views), unique=True, max_size=3).map(tuple)
    | st.sampled_from(sorted(DUE)).map(lambda view: (view,)),
    queues=st.lists(text, unique=True, max_size=3).map(tuple),
    but_queues=st.lists(text, unique=True, max_size=2).map(tuple),
    kinds=st.lists(text, unique=True, max_size=3).map(tuple),
    but_kinds=st.lists(text, unique=True, max_size=2).map(tuple),
    tenant=st.none() | text,
    key=st.none() | text,
    group=st.sampled_from([None, JOB]),
    meta=st.sampled_from([None, "customer=42", 'a b="c,d"', "empty=", "x==y", '"a=b"=5', '"a"=5']),
    since=st.sampled_from([None, "2h", "today", "2026-11-16T14:00"]),
    until=st.sampled_from([None, "90s", "1w", "2026-11-16"]),
    finished=st.sampled_from([None, "2h", "3d..1d", "today..2026-11-16T14:00"]),
    attempts=st.sampled_from([None, "3", ">=3", "<2", "=0"]),
    payload=st.none() | text,
    error=st.none() | text,
    same_error=st.sampled_from([None, JOB, "err_0123456789ab"]),
    order=st.sampled_from([None, *ORDERS]),
    id=st.sampled_from([None, JOB]),
    text=st.none() | text,
)


@given(filters)
def test_a_filter_survives_its_text(one: Filter) -> None:
    assert Filter.parse(str(one)) == one


def test_views_that_are_left_out_survive_too() -> None:
    one = Filter.parse("-is:dead,done -is:canceled is:finished")
    assert one == Filter(views=("finished",), but_views=("dead", "done", "canceled"))
    assert Filter.parse(str(one)) == one


def test_the_empty_filter_means_every_job() -> None:
    assert Filter.parse("  ") == Filter()
    assert query("") == Query()
    assert str(Filter()) == ""


def test_values_may_be_quoted_and_listed() -> None:
    one = Filter.parse(r'key:"img:7, \"a\"" kind:send,billing.charge kind:send tenant:acme')
    assert one == Filter(key='img:7, "a"', kinds=("send", "billing.charge"), tenant="acme")


def test_free_words_are_one_text() -> None:
    assert Filter.parse('is:dead connection "refused by"').text == "connection refused by"


def test_a_bare_id_names_the_job() -> None:
    assert Filter.parse(JOB.upper()) == Filter(id=JOB)
    assert Filter.parse(f"id:{JOB}") == Filter(id=JOB)
    assert Filter.parse(f'"{JOB}"') == Filter(text=JOB), "quoted text is text"
    assert Filter.parse(f"is:dead {JOB}").text == JOB


@pytest.mark.spec("FILTER-11")
def test_a_status_alone_is_one_and_failed_means_dead() -> None:
    assert Filter.parse("is:failed") == Filter.parse("failed") == Filter.parse("is:dead") == Filter(views=("dead",))
    assert Filter.parse("-is:failed") == Filter(but_views=("dead",))
    assert Filter.parse("running kind:send") == Filter(views=("running",), kinds=("send",))
    assert Filter.parse('"failed"').text == "failed"
    assert Filter.parse("connection failed").text == "connection failed"
    assert Filter.parse("failed again").text == "failed again"
    assert Filter.parse("is:dead running") == Filter(views=("dead",), text="running"), "it never means more jobs"
    assert Filter.parse("-is:dead running") == Filter(but_views=("dead",), text="running")


# --- what it means ---


def test_texts_of_payload_and_error_are_apart() -> None:
    found = query('error:"timed out" payload:4711 refused')
    assert (found.error, found.payload, found.text) == ("timed out", "4711", "refused")


@pytest.mark.parametrize(
    ("written", "meant"),
    [("3", (3, 3)), ("=3", (3, 3)), (">=3", (3, None)), (">3", (4, None)), ("<=3", (None, 3)), ("<3", (None, 2))],
)
def test_attempts_are_a_number_or_a_bound(written: str, meant: tuple[int | None, int | None]) -> None:
    found = query(f"attempts:{written}")
    assert (found.attempts_from, found.attempts_to) == meant


@pytest.mark.spec("FILTER-13")
def test_a_worker_means_what_it_runs() -> None:
    found = query("worker:0190f3")
    assert (found.worker, found.statuses) == ("0190f3", frozenset({Status.RUNNING}))
    assert query("worker:0190f3 is:dead").statuses == frozenset({Status.DEAD})
    assert str(Filter.parse("is:running worker:w1")) == "is:running worker:w1"


def test_the_end_is_bounded_by_one_moment_or_two() -> None:
    assert (query("finished:2h").finished_since, query("finished:2h").finished_until) == (NOW - 2 * HOUR, None)
    between = query("finished:3d..1d is:dead order:finished")
    assert (between.finished_since, between.finished_until) == (NOW - 3 * DAY, NOW - DAY)
    assert (between.order, between.wanted) == ("finished", frozenset({Status.DEAD}))
    with pytest.raises(InvalidFilter, match="ends before it begins"):
        query("finished:1d..3d")


def test_times_of_enqueueing_lie_behind_each_other_and_not_before_1970() -> None:
    assert (query("since:2h until:1h").since, query("since:2h until:1h").until) == (NOW - 2 * HOUR, NOW - HOUR)
    assert query("since:999999999w").since == 0
    for text in ("since:1h until:2h", "since:1h until:1h"):
        with pytest.raises(InvalidFilter, match="must be later than since"):
            query(text)


def test_a_quote_that_is_not_closed_is_named() -> None:
    with pytest.raises(InvalidFilter, match="has a quote that is not closed"):
        query('payload:"open')


def failed(error: str | None, kind: str = "send") -> Job:
    return msgspec.structs.replace(Record.drafted(Draft(bytes(16), kind), NOW), last_error=error).as_job()


def test_the_same_error_is_that_of_a_job_that_failed() -> None:
    def same(text: str, sample: Job | None) -> Query:
        found = Filter.parse(text).query(NOW, KNOWN, sample=sample)
        assert found is not None
        return found

    found = same(f"same_error:{JOB}", failed("Timeout: job 17\nat line 4"))
    assert (found.same_error, found.kinds) == (fingerprint_of("Timeout: job 18"), frozenset())
    assert same(f"same_error:{JOB} kind:billing.charge", failed("x")).kinds == {"billing.charge"}
    named = fingerprint_of("Timeout: job 18")
    assert same(f"same_error:{named}", None).same_error == named
    for sample in (None, failed(None)):
        with pytest.raises(InvalidFilter, match="names no job that has failed"):
            same(f"same_error:{JOB}", sample)


@pytest.mark.spec("FILTER-10")
def test_the_same_error_means_open_failures_unless_statuses_are_named() -> None:
    for text, statuses in (
        (f"same_error:{JOB}", {Status.DEAD, Status.RETRYING}),
        (f"same_error:{JOB} -is:dead", {Status.RETRYING}),
        (f"same_error:{JOB} is:discarded", {Status.DISCARDED}),
        ("queue:mail", set()),
    ):
        found = Filter.parse(text).query(NOW, KNOWN, sample=failed("x"))
        assert found is not None
        assert found.statuses == statuses
    with pytest.raises(InvalidFilter, match="leaves no status"):
        Filter.parse(f"same_error:{JOB} -is:dead,retrying").query(NOW, KNOWN, sample=failed("x"))


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("is:running order:finished", "goes with finished jobs"),
        ("is:dead order:due", "goes with waiting jobs"),
        ("finished:2h order:due", "goes with waiting jobs"),
        ("is:pending finished:2h", "goes with finished jobs"),
    ],
)
def test_an_order_that_no_chosen_job_has_is_refused(written: str, why: str) -> None:
    with pytest.raises(InvalidFilter, match=why):
        query(written)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("order:finish", "Did you mean finished"),
        ("attempts:many", "must be like 3"),
        ("finished:sometime", "must be like 15m"),
        ("same_error:that", "must be a job's id or the name of an error"),
        ("same_error:err_12", "must be a job's id or the name of an error"),
        ("errror:x", "Did you mean error"),
        ("-error:x", "only is, kind, queue can be left out"),
    ],
)
def test_mistakes_say_what_is_known(written: str, why: str) -> None:
    with pytest.raises(InvalidFilter, match=why):
        query(written)


@pytest.mark.parametrize(
    "words, statuses, due",
    [
        ("is:dead", {Status.DEAD}, None),
        ("is:dead,retrying", {Status.DEAD, Status.RETRYING}, None),
        ("is:ready", {Status.PENDING}, "now"),
        ("is:scheduled", {Status.PENDING}, "later"),
        ("is:waiting", {Status.PENDING}, "waiting"),
        ("is:active", ACTIVE, None),
        ("is:finished -is:done", FINISHED - {Status.DONE}, None),
        ("-is:done", frozenset(Status) - {Status.DONE}, None),
    ],
)
def test_is_names_statuses(words: str, statuses: frozenset[Status], due: str | None) -> None:
    found = query(words)
    assert found.statuses == statuses
    assert found.due == due


def test_names_are_expanded_against_what_is_known() -> None:
    assert query("queue:mail*").queues == {"mail", "mail.bulk"}
    assert query("-queue:mail*").queues == {"default"}
    assert query("queue:mail,default -queue:default").queues == {"mail"}
    assert query("kind:send").kinds == {"send"}
    assert query("kind:*").kinds == KNOWN.kinds
    assert query("queue:maill,mail").queues == {"mail"}


@pytest.mark.spec("FILTER-15")
def test_a_part_of_kinds_means_those_that_contain_it_unless_one_is_called_so() -> None:
    assert query("kind:bill").kinds == {"billing.charge"}
    assert query("kind:end").kinds == {"send", "send_all"}
    assert query("kind:send").kinds == {"send"}, "a name means itself, also where others contain it"
    assert query("-kind:end").kinds == {"billing.charge"}
    assert query("kind:bill,send -kind:charge").kinds == {"send"}
    assert query("kind:.").kinds == {"billing.charge"}
    assert Filter.parse("queue:ai").query(NOW, KNOWN) is None, "queues are whole names"
    assert Filter.parse('kind:""').query(NOW, KNOWN) is None
    assert Filter.parse("kind:bill queue:mail").unknown(KNOWN) == ()
    assert not Filter.parse("kind:bill").is_known(KNOWN), "so that all names are looked at, not only those with jobs"
    spelled = Filter.parse("kind:bill,send -kind:nd_").spelled(KNOWN)
    assert str(spelled) == "kind:*bill*,send -kind:*nd_*"
    assert spelled.admits("mail", "billing.refund") and not spelled.admits("mail", "send_all")


def test_moments() -> None:
    found = query("since:2h until:15m")
    assert (found.since, found.until) == (NOW - 2 * HOUR, NOW - 15 * MINUTE)
    assert moment_of("since", "today", NOW) == NOW - NOW % DAY
    assert moment_of("since", "1w", NOW) == NOW - 7 * DAY
    assert moment_of("since", "2026-11-16T14:00", NOW) == moment_of("since", "2026-11-16T15:00+01:00", NOW)


def test_order_tenant_key_and_text_reach_the_query() -> None:
    found = query('order:oldest tenant:acme key:k "no route"')
    assert (found.order, found.tenant, found.key, found.text) == ("oldest", "acme", "k", "no route")


@pytest.mark.spec("FILTER-12")
def test_an_entry_of_the_metadata_reaches_the_query() -> None:
    assert query("meta:customer=42").meta == ("customer", "42")
    assert query('meta:"a b=c = d"').meta == ("a b", "c = d")
    assert query("meta:customer=").meta == ("customer", "")
    for written, entry in (
        ('meta:customer="4 2"', ("customer", "4 2")),
        ('meta:customer="4 2" is:dead', ("customer", "4 2")),
        ('meta:"first name"="Ada, \\"L.\\""', ("first name", 'Ada, "L."')),
        ('meta:customer=4" "2', ("customer", "4 2")),
        ('meta:"a=b"=5', ("a=b", "5")),
        ('meta:"a=b"="c=d e"', ("a=b", "c=d e")),
        ('meta:a"=b"=5', ("a=b", "5")),
        ("meta:x==y", ("x", "=y")),
    ):
        asked = Filter.parse(written)
        assert asked.entry == Filter.parse(str(asked)).entry == entry, written
        assert asked.text is None
        assert Filter(meta=meta_of(*entry)).entry == entry
    assert query('key:order-"4 2"').key == "order-4 2"
    assert query("meta:a=\u00e9").meta_json == '"a":"\u00e9"'
    assert (query("is:dead").meta, query("is:dead").meta_json) == (None, None)


@pytest.mark.spec("FIND-30")
def test_a_group_reaches_the_query() -> None:
    assert query(f"group:{JOB}").group == ids.parse(JOB)
    assert query("is:dead").group is None


# --- mistakes ---


@pytest.mark.parametrize(
    "words, says",
    [
        ("is:daed", "Did you mean dead?"),
        ("is:frozen", "must be one of active"),
        ("quue:mail", "Did you mean queue?"),
        ("status:dead", "The words are"),
        ("http://x", "put other text in quotes"),
        ("queue:", "needs a value"),
        ("queue: mail", "needs a value"),
        ("queue:mail,", "needs a value"),
        ("is:ready,dead", "use is:pending"),
        ("is:ready is:scheduled", "ready, scheduled, waiting stand alone; use is:pending"),
        ("-is:ready", "use is:pending"),
        ("is:dead -is:dead", "leaves no status"),
        ("-tenant:acme", "only is, kind, queue can be left out"),
        ("tenant:a,b", "takes one value"),
        ("tenant:a tenant:b", "takes one value"),
        ("order:up", "newest, oldest"),
        ("since:soon", "must be like 15m"),
        ("id:seven", "must be a job's id"),
        ("group:seven", "must be a group's id"),
        ("meta:customer", "must be a name, = and the whole value, as in meta:customer=42"),
        ("meta:=42", "must be a name, = and the whole value"),
        ("meta:a=1 meta:b=2", "takes one value"),
        ("-kind:sned", "matches no kind that is known, so nothing can be left out. Did you mean send?"),
        ("-kind:zzz", "Known are billing.charge, send, send_all; got"),
        ("-queue:[a", "matches no queue"),
        ("queue:mail -queue:maill", "Did you mean mail?"),
        ("kind:zzz -queue:maill", "Did you mean mail?"),
    ],
)
def test_a_mistake_selects_nothing(words: str, says: str) -> None:
    with pytest.raises(InvalidFilter, match="Nothing was done") as refused:
        query(words)
    assert says in str(refused.value)


@pytest.mark.spec("FILTER-08")
@pytest.mark.parametrize(
    "words", ["queue:maill", "kind:sned", "kind:*zzz", 'queue:""', "-kind:*", "queue:mail -queue:mail*", "queue:[a"]
)
def test_names_that_match_nothing_match_no_job(words: str) -> None:
    """An empty set of names would mean every queue: nothing to ask a store, least of all before a deletion."""
    assert Filter.parse(words).query(NOW, KNOWN) is None
    assert Filter.parse(f"{words} same_error:{JOB}").query(NOW, KNOWN, sample=failed("x")) is None


@pytest.mark.spec("FILTER-08")
def test_unknown_names_are_hinted_at() -> None:
    assert Filter.parse("queue:mail kind:send* is:dead").unknown(KNOWN) == ()
    assert Filter.parse("queue:maill kind:zzz,send").unknown(KNOWN) == (
        "queue:maill matches no queue that is known. Did you mean mail?",
        "kind:zzz matches no kind that is known. Known are billing.charge, send, send_all.",
    )
    for words, known in (("queue:mail -kind:send", True), ("queue:maill", False), ("-kind:sned", False), ("", True)):
        assert Filter.parse(words).is_known(KNOWN) is known


@pytest.mark.spec("FILTER-08")
def test_names_decide_about_events_too() -> None:
    wanted = Filter.parse("queue:mail* -kind:send_*")
    assert wanted.admits("mail", "send")
    assert wanted.admits("mail.new", "send"), "a name that came later"
    assert not wanted.admits("mail", "send_all")
    assert not wanted.admits("default", "send")


def test_an_empty_store_and_a_large_one_are_named() -> None:
    assert Filter.parse("kind:x").unknown(Names()) == ("kind:x matches no kind that is known. None is known.",)
    many = Names(kinds=frozenset(f"kind{n}" for n in range(15)))
    [said] = Filter.parse("kind:x").unknown(many)
    assert said.endswith("kind6 and 3 more."), said


def test_a_moment_is_read_as_utc() -> None:
    from datetime import UTC, datetime

    assert moment_of("until", "2026-11-16", NOW) == instant(datetime(2026, 11, 16, tzinfo=UTC))


@pytest.mark.spec("FILTER-07")
@pytest.mark.parametrize(
    ("written", "names", "times"),
    [
        ("", False, False),
        ("is:dead tenant:acme order:finished", False, False),
        ("queue:mail", True, False),
        ("-queue:mail", True, False),
        ("kind:send*", True, False),
        ("-kind:send", True, False),
        ("since:2h", False, True),
        ("until:2h", False, True),
        ("finished:2h queue:mail", True, True),
    ],
)
def test_a_filter_says_what_it_needs_to_know_of_the_store(written: str, names: bool, times: bool) -> None:
    given = Filter.parse(written)
    assert (given.has_names, given.has_times) == (names, times)


@pytest.mark.spec("FILTER-02")
@pytest.mark.parametrize("text", ["attempts:many", "finished:soon", "until:soon", "since:soon", "order:loudest"])
def test_a_value_that_means_nothing_is_refused_when_it_is_read(text: str) -> None:
    with pytest.raises(InvalidFilter):
        Filter.parse(text)


@pytest.mark.spec("FILTER-02")
@pytest.mark.parametrize("pattern", ["send[1]", "send?", "se*[x]"])
def test_only_the_star_is_a_pattern(pattern: str) -> None:
    """`[` and `?` stand for themselves: a kind whose name has none of them is not found by them."""
    names = Names(frozenset({"mail"}), frozenset({"send1", "sendx", "sex", pattern.replace("*", "nd")}))
    found = Filter.parse(f'kind:"{pattern}"').query(NOW, names)
    assert found is not None
    assert found.kinds == {pattern.replace("*", "nd")}


@pytest.mark.spec("FILTER-02")
@pytest.mark.parametrize("value", ["plain", '"a"', 'a"b', "a\\b", 'a\\"b', '"', "\\", "a b", "a,b"])
def test_a_value_that_is_written_is_read_as_the_same(value: str) -> None:
    assert Filter.parse(f"worker:{as_value(value)}").worker == value
