"""Sealed values as texts: written and read back, shown as their size, and what is said of a closed one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.actions import allows
from stoker.model.audit import of_alter
from stoker.model.error_records import error_groups
from stoker.model.errors import InvalidName, SealedValue
from stoker.model.health import seal as health
from stoker.model.job import Claim, Draft, Job, Options, Status
from stoker.model.lifecycle import UNFIT_SINCE, UNFIT_WHY, Rules, conclude
from stoker.model.operations import RESEAL, Operation
from stoker.model.outcome import Unfit
from stoker.model.query import Reseal, Selection, Tally
from stoker.model.record import Record
from stoker.model.redact import Redaction
from stoker.model.same_error import fingerprint, readable_part, signature, signature_of
from stoker.model.seal import (
    CLOSED,
    MARK,
    OVERHEAD,
    Envelope,
    as_json,
    check_key_id,
    check_open,
    read,
    read_json,
    sized,
    sized_json,
    why_closed,
    written,
)
from stoker.model.unique import not_hidden

BODY = bytes(range(OVERHEAD)) + b"12345"
DIGEST = "ghjkmnpqrstvwxyz"
ERROR = """shop.Declined: card 4111 of 'ann' was declined
Traceback (most recent call last):
  File "/srv/app/shop/tasks.py", line 12, in charge
    raise Declined(card)
Caused by ValueError: secret"""


@pytest.mark.spec("SEAL-08")
@given(st.binary(min_size=OVERHEAD, max_size=100), st.none() | st.binary(min_size=16, max_size=16))
def test_a_sealed_value_is_read_back(body: bytes, job: bytes | None) -> None:
    text = written("2026-11", body, job)
    assert read(text) == Envelope("2026-11", body, job)
    assert read_json(as_json(text)) == Envelope("2026-11", body, job)


@pytest.mark.spec("SEAL-08")
@pytest.mark.parametrize("text", ["", "plain", MARK, f"{MARK}k~", f"{MARK}k~abcde", f"{MARK}k~abcd", f"{MARK}~abcd"])
def test_other_texts_are_no_sealed_values(text: str) -> None:
    assert read(text) is None
    assert read_json(as_json(text)) is None
    assert read_json(b"{}") is None
    assert read_json(None) is None
    assert sized(text) == text


@pytest.mark.spec("SEAL-08")
@given(st.binary(min_size=OVERHEAD, max_size=60))
def test_a_sealed_value_that_was_cut_off_is_none_or_shorter(body: bytes) -> None:
    """A column that is too short, or a careless copy, raises nothing in whoever reads it."""
    text = written("k", body)
    for end in range(len(text)):
        found = read(text[:end])
        assert found is None or body.startswith(found.body[:-1])


@pytest.mark.spec("SEAL-15")
@pytest.mark.parametrize("text", ["{} and a secret", "secret {}", "{}\nsecret", "{}\n", "{}~secret", '{}"'])
def test_a_text_beside_a_sealed_value_is_not_taken_for_sealed(text: str) -> None:
    around = text.format(written("2026-11", BODY))
    assert read(around) is None
    assert read_json(as_json(around)) is None
    assert why_closed(as_json(around)) is None


@pytest.mark.spec("SEAL-10")
def test_no_key_has_the_name_of_what_cannot_be_opened() -> None:
    with pytest.raises(InvalidName, match="cannot be opened"):
        check_key_id("closed")


@pytest.mark.spec("SEAL-07")
def test_without_a_key_a_sealed_value_is_its_size() -> None:
    text = written("2026-11", BODY)
    assert sized(f"a {text} b") == "a (sealed with key 2026-11, 5 bytes) b"
    assert sized_json(as_json(text)) == b'"(sealed with key 2026-11, 5 bytes)"'
    assert sized_json(b'{"a":1}') == b'{"a":1}'
    assert sized_json(as_json(text)[:-1] + b'\xff"') == b'"(sealed with key 2026-11, 5 bytes)\xef\xbf\xbd"'
    assert sized(written("k", b"x" * OVERHEAD)) == "(sealed with key k, 0 bytes)"
    assert sized_json(as_json(f"{CLOSED}there is no key")) == b'"(there is no key)"'


@pytest.mark.spec("SEAL-02")
def test_a_closed_value_says_why() -> None:
    assert why_closed(None) is why_closed(b"{}") is why_closed(as_json(f"{MARK}k~!")) is None
    assert why_closed(as_json(f"{CLOSED}the key is missing")) == "the key is missing"
    assert why_closed(as_json(written("k", BODY))[:-2] + b'\xff"') is None
    assert "'2026-11'" in (why_closed(as_json(written("2026-11", BODY))) or "")
    check_open(b'"open"', "result")
    with pytest.raises(
        SealedValue, match=r"^result: cannot be read: the key is missing\. What is stored is unchanged\.$"
    ):
        check_open(as_json(f"{CLOSED}the key is missing"), "result")


@pytest.mark.spec("SEAL-08")
def test_the_id_of_a_key_is_a_short_name() -> None:
    assert check_key_id("2026-11") == "2026-11"
    for wrong in ("", "a b", "a~b", "-a", "x" * 33, 7):
        with pytest.raises(InvalidName, match="key id"):
            check_key_id(wrong)  # type: ignore[arg-type]


@pytest.mark.spec("SEAL-09")
def test_class_and_place_of_a_sealed_error_stay_readable() -> None:
    readable = readable_part(signature(ERROR), DIGEST)
    assert readable.splitlines()[0] == f"shop.Declined: sealed {DIGEST}"
    assert signature(readable) == f"shop.Declined: sealed {DIGEST}\nshop/tasks.py in charge"
    assert "secret" not in readable
    assert fingerprint(signature(f"{readable}\n{written('k', BODY)}")) == fingerprint(signature(readable))


@pytest.mark.spec("SEAL-09")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("KeyError: 'ann'", f"KeyError: sealed {DIGEST}"),
        ("Ann: is not a class", f"sealed {DIGEST}"),
        ("nothing of the kind", f"sealed {DIGEST}"),
        ("Http404Error: gone", f"Http…Error: sealed {DIGEST}"),
        *(
            (f"{name}: 'ann'", f"{name}: sealed {DIGEST}")
            for name in ("KeyError", "BaseException", "ExceptionGroup", "httpx.ReadTimeout", "UserWarning")
        ),
        *((f"{name}: 'ann'", f"{name}: sealed {DIGEST}") for name in ("SystemExit", "KeyboardInterrupt")),
        (f"{'E' * 150}Error: long", f"sealed {DIGEST}"),
        ("", f"sealed {DIGEST}"),
    ],
)
def test_only_a_class_stays_of_a_message(error: str, expected: str) -> None:
    assert readable_part(signature(error), DIGEST) == expected
    assert signature(expected) == expected


@pytest.mark.spec("SEAL-09")
def test_what_the_rules_of_errors_would_change_is_left_out() -> None:
    odd = 'ValueError: x\nTraceback (most recent call last):\n  File "a in b.py", line 1, in f in g'
    assert signature(readable_part(signature(odd), DIGEST)).startswith(f"ValueError: sealed {DIGEST}")
    masked = readable_part("password: x\nshop/tasks.py in charge", DIGEST)
    assert signature(masked) == f"{masked.splitlines()[0]}\nshop/tasks.py in charge"


@pytest.mark.spec("SEAL-07")
def test_health_says_which_keys_are_missing() -> None:
    assert health.judge([], []) == []
    assert [(one.name, one.verdict) for one in health.judge(["a"], ["a", "b"])] == [("seal", "ok")]
    [found] = health.judge(["b", "a"], [])
    assert found.name == "seal"
    assert (found.verdict, found.read) == ("note", "the store is sealed with keys a, b; keys a, b are not here")
    [found] = health.judge(["a", "b"], ["a"])
    assert (found.verdict, found.read) == ("warning", "the store is sealed with keys a, b; key b is not here")
    assert found.remedy == "add key b to Seal(keys=...), behind the current one"
    [found] = health.judge(["a", "b"], ["b", "a"])
    assert (found.verdict, found.meaning) == ("note", "Records may still need key a: keep it.")


@pytest.mark.spec("SEAL-18")
def test_health_judges_the_newest_jobs() -> None:
    [found] = health.judge(["a"], ["a"], health.Newest(9, closed=2))
    assert (found.verdict, found.read) == ("warning", "of the newest 9 jobs 2 cannot be opened with key a")
    [found] = health.judge(["b"], ["b", "a"], health.Newest(9, stale=1))
    assert (found.verdict, found.remedy) == ("note", "stoker reseal")
    assert found.read == "of the newest 9 jobs 1 are not sealed with the current key b"
    [found] = health.judge(["a", "b"], ["b", "a"], health.Newest(9, stale=9))
    assert found.meaning == "Records may still need key a: keep it."
    assert [one.verdict for one in health.judge(["a"], ["a"], health.Newest(9))] == ["ok"]


@pytest.mark.spec("SEAL-09")
def test_a_group_of_sealed_errors_has_the_line_of_those_who_read_it() -> None:
    def job(n: int) -> Job:
        known = signature(readable_part(signature(ERROR), DIGEST))
        error = ERROR.replace("4111", str(n))
        return Job(
            id=bytes([n]) * 16,
            kind="k",
            queue="q",
            payload=b"",
            priority=0,
            budget=1,
            created_at=0,
            scheduled_at=0,
            status=Status.DEAD,
            last_error=error,
            known_as=known,
        )

    [group] = error_groups([job(1), job(2)])
    assert (group.count, group.error) == (2, "shop.Declined: card … of … was declined")
    assert group.id == fingerprint(signature_of(job(1))) != fingerprint(signature(ERROR))


@pytest.mark.spec("SEAL-02")
def test_a_job_that_cannot_be_opened_is_never_given_up() -> None:
    claim = Claim(b"1" * 16, "k", "q", b"", 1, 0, 1, "w", 1, 10**15, 0, 0, metadata={UNFIT_SINCE: "1"})
    settlement = conclude(claim, Unfit("no key", sealed=True), Rules(unfit_grace=0))
    assert (settlement.status, settlement.refund) == (Status.PENDING, True)
    assert settlement.metadata == {UNFIT_WHY: "no key", UNFIT_SINCE: "1"}


def test_a_key_is_hidden_only_with_keys() -> None:
    assert "seal=Seal(...)" in str(not_hidden("send"))


@pytest.mark.spec("SEAL-13")
def test_values_are_resealed_only_where_they_are_as_they_were_read() -> None:
    record = Record(
        id=b"1" * 16, kind="k", queue="q", payload=b"1", priority=0, budget=1, created_at=0, scheduled_at=0, log=("a",)
    )
    before = record.as_job(log=())
    after = record.as_job(payload=b"2", log=("b",))
    changed = record.resealed(before, after)
    assert (changed.payload, changed.log) == (b"2", ("a",))
    change = Reseal((before,), (after,))
    assert all(allows(change, status) for status in Status)
    assert of_alter(Selection((record.id,)), change, Tally(changed=1)) is None


@pytest.mark.spec("SEAL-14")
def test_an_operation_that_reseals_says_what_could_not_be_opened() -> None:
    stored = Operation(id="1", who="", action=RESEAL, filter="", bound=0, started=0, changed=1, blocked=2)
    assert stored.fates == {"changed": 1, "cannot be opened": 2}


@pytest.mark.spec("SEAL-07")
def test_a_label_that_is_sealed_is_its_size() -> None:
    own = Options(label=written("2026-11", BODY))
    record = Record.drafted(Draft(b"1" * 16, "k", options=own), 0)
    assert Redaction().job(record).options.label == "(sealed with key 2026-11, 5 bytes)"
