from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidOption
from stoker.model.time import DAY, HOUR, MINUTE, SECOND
from stoker.settings import RetentionSettings, TimelineSettings, WorkerSettings, check_known, resolve, whole

ROOMS = (WorkerSettings, TimelineSettings, RetentionSettings)


@dataclasses.dataclass(frozen=True)
class Options:
    """As an engine would declare its own: plain types and plain metadata."""

    journal: Literal["wal", "delete"] = "wal"
    busy: int = dataclasses.field(default=5 * SECOND, metadata={"span": True, "low": 0, "high": HOUR})
    pool: int | None = whole(None, low=1, high=100)
    ratio: float = dataclasses.field(default=0.5, metadata={"low": 0.0, "high": 1.0})
    strict: bool = True
    schema: str = "stoker"
    seen: int = dataclasses.field(default=0, init=False)


@pytest.mark.spec("CONFIG-01")
def test_defaults() -> None:
    worker = resolve(WorkerSettings)
    assert worker == WorkerSettings()
    assert (worker.lease, worker.renew_every, worker.shutdown_grace) == (15 * SECOND, 5 * SECOND, 30 * SECOND)
    assert (worker.poll, worker.slots, worker.queues) == (SECOND, 10, None)
    assert (worker.unknown_task_grace, worker.long_running) == (HOUR, 5 * MINUTE)
    timeline = resolve(TimelineSettings)
    assert (timeline.event_buffer, timeline.event_flush, timeline.event_chunk) == (50_000, 2 * SECOND, 2_000)
    keep = resolve(RetentionSettings)
    assert (keep.keep_events, keep.keep_points, keep.keep_audit) == (30 * DAY, 30 * DAY, 90 * DAY)


@pytest.mark.spec("CONFIG-01")
def test_every_default_is_within_its_own_bounds() -> None:
    for room in ROOMS:
        for option in dataclasses.fields(room):
            if option.default is None:
                continue
            low, high = option.metadata.get("low"), option.metadata.get("high")
            assert low is None or option.default >= low
            assert high is None or option.default <= high


@pytest.mark.spec("CONFIG-02")
def test_a_keyword_beats_the_query_beats_the_environment_beats_the_default() -> None:
    keywords, query, environ = {"lease": 40}, {"lease": "30"}, {"STOKER_LEASE": "20", "HOME": "x", "STOKER_URL": "y"}
    assert resolve(WorkerSettings, keywords, query, environ).lease == 40 * SECOND
    assert resolve(WorkerSettings, {}, query, environ).lease == 30 * SECOND
    assert resolve(WorkerSettings, None, None, environ).lease == 20 * SECOND
    assert resolve(WorkerSettings, None, None, {"STOKER_LEASE": ""}).lease == 15 * SECOND
    assert resolve(WorkerSettings, {"lease": None}, None, environ).lease == 20 * SECOND
    assert resolve(WorkerSettings, {"slots": 3}, {"lease": "30"}, {"STOKER_POLL": "2"}) == WorkerSettings(
        slots=3, lease=30 * SECOND, poll=2 * SECOND
    )


@pytest.mark.spec("CONFIG-02")
def test_one_name_means_one_option_across_the_rooms() -> None:
    names = [option.name for room in ROOMS for option in dataclasses.fields(room)]
    assert len(names) == len(set(names))


@pytest.mark.spec("CONFIG-03")
@pytest.mark.parametrize("given", ["keywords", "query"])
def test_an_unknown_option_lists_the_known_ones(given: str) -> None:
    arguments: dict[str, Any] = {given: {"event_fush": "1"}}
    with pytest.raises(InvalidOption) as caught:
        resolve(TimelineSettings, **arguments)
    text = str(caught.value)
    assert "'event_fush'" in text
    assert "did you mean event_flush?" in text
    assert "event_buffer, event_chunk, event_flush" in text
    assert ("keyword" if given == "keywords" else "URL query") in text


@pytest.mark.spec("CONFIG-03")
def test_a_guess_is_made_only_where_one_is_near() -> None:
    with pytest.raises(InvalidOption, match=r"did you mean keep_events"):
        resolve(RetentionSettings, {"Keep-Events": 1})
    with pytest.raises(InvalidOption, match=r"no such option; known are clean_every"):
        resolve(RetentionSettings, {"zzz": 1})
    with pytest.raises(InvalidOption, match="known are none"):
        check_known(["x"], [])
    with pytest.raises(InvalidOption, match="seen"):
        resolve(Options, {"seen": 1})


@pytest.mark.spec("CONFIG-04")
@pytest.mark.parametrize(
    ("given", "span"),
    [
        (15, 15 * SECOND),
        (0.25, SECOND // 4),
        (timedelta(minutes=2), 2 * MINUTE),
        ("15", 15 * SECOND),
        ("0.25", SECOND // 4),
    ]
    + [("250ms", SECOND // 4), (" 2 m ", 2 * MINUTE), ("1h", HOUR), ("90s", 90 * SECOND), ("0", 0), (0, 0)],
)
def test_durations(given: Any, span: int) -> None:
    assert resolve(Options, {"busy": given}).busy == span


@pytest.mark.spec("CONFIG-04")
@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        *[("strict", word, True) for word in ("1", "true", "YES", " on ", True)],
        *[("strict", word, False) for word in ("0", "False", "no", "off", False)],
        ("pool", "7", 7),
        ("pool", "None", None),
        ("pool", 100, 100),
        ("ratio", "0.25", 0.25),
        ("ratio", 1, 1.0),
        ("schema", "jobs", "jobs"),
        ("journal", "delete", "delete"),
    ],
)
def test_values_are_read_by_type(name: str, given: Any, value: Any) -> None:
    found = getattr(resolve(Options, {name: given}), name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.spec("CONFIG-04")
def test_queues() -> None:
    for wanted in ({"mail": 5, "default": 20}, "mail:5,default:20", " mail : 5, default:20 ,"):
        queues = resolve(WorkerSettings, {"queues": wanted}).queues
        assert queues == {"mail": 5, "default": 20}
        assert isinstance(queues, Mapping)
        assert list(queues) == ["mail", "default"]
    assert resolve(WorkerSettings, None, None, {"STOKER_QUEUES": "a:b:3"}).queues == {"a:b": 3}
    assert resolve(WorkerSettings, None, None, {"STOKER_QUEUES": "mail"}).queues == {"mail": None}
    assert resolve(WorkerSettings, {"queues": "mail, b:2"}).queues == {"mail": None, "b": 2}


@pytest.mark.spec("CONFIG-04")
@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("busy", "soon", "must be seconds"),
        ("busy", "-1", "must be seconds"),
        ("busy", "1e3", "must be seconds"),
        ("busy", "９", "must be seconds"),
        ("busy", -1, "must not be negative"),
        ("busy", True, "must be seconds"),
        ("busy", float("nan"), "must be finite"),
        ("busy", "2h", "must be at most 3600 s"),
        ("busy", "9" * 400, "must be at most ten years"),
        ("pool", 0, "must be at least 1"),
        ("pool", "101", "must be at most 100"),
        ("pool", "1.5", "must be a whole number"),
        ("pool", 1.0, "must be a whole number"),
        ("pool", True, "must be a whole number"),
        ("pool", "9" * 5_000, "must be a whole number"),
        ("ratio", "nan", "must be a number"),
        ("ratio", 10**400, "must be a number"),
        ("ratio", "x", "must be a number"),
        ("ratio", 2, "must be at most 1.0"),
        ("strict", "maybe", "must be one of true, false"),
        ("strict", 1, "must be one of true, false"),
        ("schema", 7, "must be text"),
        ("journal", "WAL", "must be one of wal, delete"),
    ],
)
def test_a_bad_value_raises_with_what_is_expected(name: str, given: Any, why: str) -> None:
    with pytest.raises(InvalidOption, match=rf"the keyword {name}: {why}"):
        resolve(Options, {name: given})


@pytest.mark.spec("CONFIG-04")
@pytest.mark.parametrize(
    "given", ["mail:", ":5", "mail:0", "mail:x", {}, {"mail": 0}, {"": 1}, {1: 1}, 5, ["mail"], ","]
)
def test_bad_queues(given: Any) -> None:
    with pytest.raises(InvalidOption, match=r"the keyword queues: must be"):
        resolve(WorkerSettings, {"queues": given})


@pytest.mark.spec("CONFIG-05")
def test_a_bad_value_raises_with_its_source() -> None:
    with pytest.raises(InvalidOption, match=r"the environment variable STOKER_LEASE: must be seconds.*'soon'"):
        resolve(WorkerSettings, environ={"STOKER_LEASE": "soon"})
    with pytest.raises(InvalidOption, match=r"the URL query option lease: must be at least 1 s; got '0.5'"):
        resolve(WorkerSettings, query={"lease": "0.5"})
    assert resolve(WorkerSettings, {"lease": 5}, {"lease": "soon"}).lease == 5 * SECOND


@pytest.mark.spec("CONFIG-01")
def test_settings_cannot_be_changed_afterwards() -> None:
    for room in ROOMS:
        settings = room()
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(settings, dataclasses.fields(room)[0].name, 1)
    queues = resolve(WorkerSettings, {"queues": "a:1"}).queues
    with pytest.raises(TypeError):
        queues["a"] = 2  # type: ignore[index]


@pytest.mark.spec("CONFIG-04", "CONFIG-05")
@given(name=st.sampled_from([f.name for f in dataclasses.fields(Options) if f.init]), text=st.text())
def test_any_text_is_read_or_refused(name: str, text: str) -> None:
    try:
        settings = resolve(Options, query={name: text})
    except InvalidOption:
        with pytest.raises(InvalidOption, match=f"STOKER_{name.upper()}") if text else nullcontext():
            resolve(Options, environ={f"STOKER_{name.upper()}": text})
    else:
        assert resolve(Options, environ={f"STOKER_{name.upper()}": text}) in (settings, Options())
