"""Jobs as lines of an archive."""

from __future__ import annotations

import json

import msgspec
import pytest

from stoker.model.archive import VERSION, read, was_member, written
from stoker.model.errors import InvalidInput
from stoker.model.job import Failure, Job, Options, Status
from stoker.model.record import Record
from stoker.model.steps import NEVER, Step, StepState, Wakes
from stoker.model.unique import Unique

NOW = 1_800_000_000_000_001
PLAIN = Job(
    id=b"\x01" * 16, kind="send", queue="mail", payload=b"[]", priority=0, budget=3, created_at=NOW, scheduled_at=NOW
)
FULL = msgspec.structs.replace(
    PLAIN,
    payload=b'{"to": "ada", "n": 1.10}',
    priority=-5,
    status=Status.DEAD,
    attempts=3,
    base=1,
    crashes=1,
    throttles=2,
    options=Options(metadata={"a": "b"}),
    unique=Unique("img:7", for_=60),
    tenant="acme",
    token=NOW + 5,
    started_at=NOW + 1,
    finished_at=NOW + 2,
    expires_at=NOW + 3,
    last_error="boom\nat é",
    history=(Failure(NOW, 1, "first", 7), Failure(NOW + 2, 3, "boom\nat é")),
    result=b"null",
    progress=0.5,
    metadata={"k": "v"},
    log=("one", "two\n"),
    successor=b"\x02" * 16,
    settled=Status.DEAD,
    origin=9,
)
STEPS = [Step("charge", value=b'{"id": 7}', token=3, at=NOW), Step("ask", StepState.WAITING, until=NEVER)]


@pytest.mark.spec("EXPORT-01")
@pytest.mark.parametrize(
    "job",
    [
        PLAIN,
        FULL,
        msgspec.structs.replace(PLAIN, settled=Wakes.ALL, scheduled_at=NEVER, token=1),
        *(msgspec.structs.replace(PLAIN, payload=payload, result=payload) for payload in (b'"a"', b"1", b"{}")),
        # no JSON in one line, or such that a reader might change it
        *(
            msgspec.structs.replace(PLAIN, payload=payload, result=payload)
            for payload in (b'{\n"a": 1}', b" 1", b"1\r", b"\xff", b"{", b"[" * 5_000, b'{"$base64":"MQ=="}', b"")
        ),
    ],
)
def test_what_a_line_carries_comes_back_byte_by_byte(job: Job) -> None:
    line = written(job, STEPS)
    assert b"\n" not in line
    found = read(line, 1)
    assert found.record.as_job() == job
    assert list(found.steps) == STEPS
    assert written(found.record.as_job(), found.steps) == line


@pytest.mark.spec("EXPORT-01")
def test_a_line_is_an_object_that_others_can_read() -> None:
    found = json.loads(written(FULL, STEPS))
    assert (found["stoker"], found["id"], found["status"]) == (VERSION, "01010101-0101-0101-0101-010101010101", "dead")
    assert found["payload"] == {"to": "ada", "n": 1.1}
    assert found["history"][0] == {"at": NOW, "attempt": 1, "error": "first", "origin": 7}
    assert [step["name"] for step in found["steps"]] == ["charge", "ask"]
    assert "value" not in found["steps"][1]


@pytest.mark.spec("EXPORT-01")
def test_a_running_job_is_pending_and_a_member_leaves_its_group() -> None:
    running = msgspec.structs.replace(PLAIN, status=Status.RUNNING, attempts=2, worker="w", token=9, started_at=NOW)
    found = read(written(running), 1).record
    assert (found.status, found.attempts, found.token, found.worker) == (Status.PENDING, 1, 9, None)
    member = written(msgspec.structs.replace(PLAIN, options=Options(group=b"\x03" * 16)))
    assert was_member(member)
    assert not was_member(written(PLAIN))
    assert read(member, 1).record.options.group is None


@pytest.mark.spec("EXPORT-03")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"stoker":1', b'"stoker":2'),
        (b'"stoker":1,', b""),
        (b"pending", b"running"),
        (b"pending", b"unheard"),
        (b"0101-0101", b"no-id"),
        (b'"kind":"send",', b""),
        (b'"payload":[]', b'"payload":[]],'),
    ],
)
def test_what_is_no_line_of_an_export_is_refused(old: bytes, new: bytes) -> None:
    line = written(PLAIN)
    assert old in line
    with pytest.raises(InvalidInput, match="line 7: is no job that stoker export wrote"):
        read(line.replace(old, new, 1), 7)


@pytest.mark.spec("PUT-01")
def test_a_fresh_job_is_told_from_one_of_another_store() -> None:
    fresh = Record(**{name: getattr(PLAIN, name) for name in Job.__struct_fields__})
    assert fresh.is_fresh(NOW)
    assert not fresh.is_fresh(NOW + 1)
    assert msgspec.structs.replace(fresh, token=1).is_fresh(NOW), "a copy"
    for change in ({"token": 2}, {"attempts": 1}, {"metadata": {"a": "b"}}, {"status": Status.DONE}, {"progress": 0.0}):
        assert not msgspec.structs.replace(fresh, **change).is_fresh(NOW)
    assert fresh.errors == ()
    failed = msgspec.structs.replace(fresh, history=FULL.history, last_error=FULL.last_error)
    assert failed.errors == FULL.history
    canceled = msgspec.structs.replace(failed, last_error="not needed", finished_at=NOW + 9)
    assert canceled.errors == (*FULL.history, Failure(NOW + 9, 0, "not needed"))
