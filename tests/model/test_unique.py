from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidInput
from stoker.model.job import Draft, Options, pack, unpack
from stoker.model.time import SECOND
from stoker.model.unique import LONGEST_KEY, Holder, Meeting, Mode, Unique, check_text, meet

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,20}", fullmatch=True)
KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=100)
SCOPES = st.sampled_from(["kind", "global"])


@pytest.mark.spec("KEY-13")
@pytest.mark.parametrize("mode", ["existing", "replace", "raise"])
def test_a_free_or_weak_key_is_taken_in_every_mode(mode: Mode) -> None:
    assert meet(Holder.NONE, mode) is Meeting.TAKE
    assert meet(Holder.WEAK, mode) is Meeting.SUPERSEDE


@pytest.mark.spec("KEY-13")
@pytest.mark.parametrize(
    ("holder", "mode", "meeting"),
    [
        (Holder.PENDING, "existing", Meeting.EXISTING),
        (Holder.RUNNING, "existing", Meeting.EXISTING),
        (Holder.STRONG, "existing", Meeting.EXISTING),
        (Holder.PENDING, "replace", Meeting.REPLACE),
        (Holder.RUNNING, "replace", Meeting.EXISTING),
        (Holder.STRONG, "replace", Meeting.EXISTING),
        (Holder.PENDING, "raise", Meeting.REFUSE),
        (Holder.RUNNING, "raise", Meeting.REFUSE),
        (Holder.STRONG, "raise", Meeting.REFUSE),
        (Holder.KEPT, "existing", Meeting.EXISTING),
        (Holder.KEPT, "replace", Meeting.EXISTING),
        (Holder.KEPT, "raise", Meeting.REFUSE),
    ],
)
def test_a_firm_holder_is_met_by_mode(holder: Holder, mode: Mode, meeting: Meeting) -> None:
    assert meet(holder, mode) is meeting


@pytest.mark.spec("KEY-14")
@given(NAMES, KEYS, SCOPES, NAMES, KEYS, SCOPES)
def test_slots_are_equal_only_for_the_same_scope_and_key(
    kind: str, key: str, scope: Any, other_kind: str, other_key: str, other_scope: Any
) -> None:
    one, two = Unique(key, scope), Unique(other_key, other_scope)
    same = (key, scope) == (other_key, other_scope) and (scope == "global" or kind == other_kind)
    assert (one.slot(kind) == two.slot(other_kind)) == same


@pytest.mark.spec("KEY-17")
def test_durations_of_a_key_are_refused_by_field() -> None:
    wrong: Any
    for wrong in (0, -1, "60", math.nan):
        with pytest.raises(InvalidInput) as refused:
            Unique("k", mode="replace", longest=wrong)
        assert refused.value.field == "Unique.longest"
        with pytest.raises(InvalidInput) as refused:
            Unique("k", for_=wrong)
        assert refused.value.field == "Unique.for_"
    with pytest.raises(InvalidInput, match='needs mode="replace"'):
        Unique("k", longest=60)
    with pytest.raises(InvalidInput, match="must be at least the delay, 61 s"):
        Draft(b"j" * 16, "send", delay=61 * SECOND, unique=Unique("k", mode="replace", longest=60))
    assert (
        Draft(b"j" * 16, "send", delay=60 * SECOND, unique=Unique("k", mode="replace", longest=60)).unique is not None
    )
    assert Unique("k", for_=60) == Unique("k", for_=timedelta(minutes=1)) != Unique("k")
    with pytest.raises(InvalidInput, match=r"is left out for all arguments, as in Unique\(for_=3600\)"):
        Unique(True)  # type: ignore[arg-type]


@pytest.mark.spec("TASK-09")
def test_a_key_of_all_arguments_is_made_of_their_fingerprint() -> None:
    assert Unique(for_=60).is_of_arguments
    made = Unique(for_=60, mode="raise").of_arguments("f00")
    assert (made, made.is_of_arguments) == (Unique("arguments:f00", for_=60, mode="raise"), False)
    with pytest.raises(InvalidInput, match=r"unique: has no key; task.draft\(...\)"):
        Draft(b"j" * 16, "send", unique=Unique())
    assert Unique("k", mode="replace", longest=60) == Unique("k", mode="replace", longest=timedelta(minutes=1))


@pytest.mark.spec("KEY-16", "KEY-18")
def test_a_key_in_a_stored_draft_keeps_its_durations() -> None:
    for unique in (Unique("k"), Unique("k", mode="replace", longest=60, for_=0.5)):
        behind = Draft(bytes(16), "send", unique=unique)
        assert unpack(pack(Options(then=(behind,)))).then == (behind,)
    assert msgspec.json.decode(b'{"key":"k","scope":"kind","mode":"raise"}', type=Unique) == Unique("k", mode="raise")


@pytest.mark.spec("KEY-14")
def test_a_slot_does_not_depend_on_mode_or_hold() -> None:
    assert Unique("k").slot("a") == Unique("k", "kind", "raise", "retrying").slot("a") == "a/k"
    assert Unique("k", "global").slot("a") == Unique("k", "global").slot("b") == "/k"


@pytest.mark.spec("KEY-15", "INPUT-06")
@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "non-empty"),
        (None, "non-empty"),
        (7, "non-empty"),
        (b"k", "non-empty"),
        ("a\0b", "NUL"),
        ("\ud800", "surrogates"),
        ("k" * (LONGEST_KEY + 1), "512 bytes"),
        ("é" * 257, "512 bytes"),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_a_bad_key_is_refused_with_the_culprit(value: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as refused:
        Unique(value)
    assert (refused.value.field, refused.value.value) == ("unique key", value)
    with pytest.raises(InvalidInput, match=why):
        check_text("tenant", value)


@pytest.mark.spec("KEY-15", "INPUT-06")
@pytest.mark.parametrize("field", ["scope", "mode", "hold"])
@pytest.mark.parametrize("value", ["queue", "", None, ["kind"]], ids=repr)
def test_an_unknown_choice_is_refused_and_the_known_ones_are_listed(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match="must be one of") as refused:
        Unique("k", **{field: value})
    assert refused.value.field == f"Unique.{field}"


@pytest.mark.spec("KEY-15")
@given(KEYS)
def test_any_storable_text_is_a_key(key: str) -> None:
    if len(key.encode()) <= LONGEST_KEY:
        assert Unique(key).key == key
