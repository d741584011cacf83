"""Plain text in structs, and what errors quote of a value."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.budgets import Rates, Spend
from stoker.model.control import Tuning
from stoker.model.errors import InvalidInput, InvalidPayload, PayloadMismatch, PayloadTooLarge, UnknownTask, cut
from stoker.model.job import Draft, Options, check_drafts, check_name, check_text_map
from stoker.model.limit import Slot
from stoker.model.throttle import Rate
from stoker.model.unique import Unique, plain


class Safe(str):
    __slots__ = ()

    def __str__(self) -> str:
        return self


@pytest.mark.spec("INPUT-11")
def test_names_and_texts_become_plain() -> None:
    assert type(plain(Safe("a"))) is str
    assert type(check_name("queue", Safe("mail"))) is str
    draft = Draft(bytes(16), Safe("kind"), queue=Safe("queue"), tenant=Safe("acme"), unique=Unique(Safe("key")))
    assert draft.unique is not None
    assert {type(text) for text in (draft.kind, draft.queue, draft.tenant, draft.unique.key)} == {str}
    tuning = Tuning(paused=True, reason=Safe("why"), limits=((Safe("name"), 1),))
    assert {type(text) for text in (tuning.reason, tuning.limits[0][0], Slot(Safe("name"), n=1).name)} == {str}
    spend = Spend({Safe("tokens"): 1}, Safe("acme"))
    assert {type(text) for text in (*spend.asked, spend.key, *Rates({Safe("tokens"): Rate(1)}).rates)} == {str}
    metadata = Options(metadata={Safe("key"): "value", "other": Safe("text")}).metadata
    assert metadata == {"key": "value", "other": "text"}
    assert {type(text) for pair in metadata.items() for text in pair} == {str}
    given = {"key": "value"}
    assert check_text_map("metadata", given, 100) is given


@pytest.mark.spec("INPUT-12")
def test_what_is_no_map_and_no_draft_is_refused() -> None:
    wrong: Any = "ab"
    with pytest.raises(InvalidInput, match="metadata: must map text to text"):
        check_text_map("metadata", wrong, 100)
    with pytest.raises(InvalidInput, match=r"draft: must be drafts.*got None"):
        check_drafts("draft", [None])  # type: ignore[list-item]


@pytest.mark.spec("INPUT-13")
def test_an_error_quotes_the_beginning_of_a_long_text() -> None:
    assert cut("short") == "short"
    assert len(cut("x" * 10_000)) == 2_000
    assert len(str(InvalidInput("x" * 10_000, "x" * 10_000, "x" * 10_000))) < 5_000
    assert len(str(UnknownTask("x" * 10_000))) < 1_000


@pytest.mark.spec("DATA-25")
@pytest.mark.parametrize(
    ("error", "got"),
    [
        (InvalidPayload("f", "secret", "why"), "str"),
        (PayloadMismatch("f", b' "secret"', "why"), "text"),
        (PayloadMismatch("f", b"4111", "why"), "a number"),
        (PayloadMismatch("f", b"{}", "why"), "an object"),
        (PayloadMismatch("f", b"", "why"), "nothing"),
        (PayloadMismatch("f", "OrderPlaced", "why"), "str"),
        (PayloadTooLarge("f", 5, "why"), "5"),
    ],
)
def test_errors_about_payloads_name_the_type(error: InvalidInput, got: str) -> None:
    assert f"f: why; got {got}." in str(error)
