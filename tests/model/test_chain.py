from __future__ import annotations

from typing import Any

import pytest

from stoker.model.errors import InvalidInput
from stoker.model.ids import text
from stoker.model.job import (
    LARGEST_CHAIN,
    LARGEST_METADATA,
    MOST_LINKS,
    PARENT,
    PLAIN,
    Draft,
    Options,
    chain,
    links,
    pack,
    path_to,
    unpack,
)
from stoker.model.unique import Unique


def draft(number: int = 0, **fields: Any) -> Draft:
    return Draft(number.to_bytes(16), f"job{number}", **fields)


@pytest.mark.spec("CHAIN-01")
def test_then_returns_a_copy_and_leaves_the_draft_alone() -> None:
    first = draft(1)
    linked = first.then(draft(2), draft(3))
    assert first.options is PLAIN
    assert [link.kind for link in linked.options.then] == ["job2", "job3"]
    assert {link.options.metadata[PARENT] for link in linked.options.then if link.options.metadata} == {
        text(first.job_id)
    }
    assert [link.kind for link in linked.then(draft(4)).options.then] == ["job2", "job3", "job4"]


@pytest.mark.spec("CHAIN-01")
def test_a_chain_stands_one_behind_the_other() -> None:
    assert chain(draft(1)) == draft(1)
    whole = chain(draft(1), draft(2), draft(3).then(draft(4), draft(5)))
    assert [link.kind for link in links(whole.options)] == ["job2", "job3", "job4", "job5"]
    [second] = whole.options.then
    [third] = second.options.then
    assert len(third.options.then) == 2


@pytest.mark.spec("CHAIN-02")
def test_a_chain_survives_being_stored() -> None:
    keyed = draft(2, payload=b"\xff\x00", unique=Unique("k"), tenant="a", at=5, options=Options(keep=0))
    options = chain(draft(1), keyed, draft(3, delay=7)).options
    assert unpack(pack(options)) == options


@pytest.mark.spec("CHAIN-11")
def test_a_draft_shows_its_id_as_text_and_is_stored_under_that_name() -> None:
    one = draft(1)
    assert one.id == "00000000-0000-0000-0000-000000000001"
    assert repr(one).startswith("Draft(id='00000000-0000-0000-0000-000000000001', kind='job1', payload=b'")
    stored = b'{"then":[{"id":"AAAAAAAAAAAAAAAAAAAAAQ==","kind":"job1"}]}'
    assert unpack(stored).then == (one,)
    assert pack(Options(then=(one,))) == stored


@pytest.mark.spec("CHAIN-09")
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: draft().then(), "at least one"),
        (lambda: chain(), "at least one"),
        (lambda: draft().then(None), "drafts"),  # type: ignore[arg-type]
        (lambda: draft().then([draft(1)]), "drafts"),  # type: ignore[arg-type]
        (lambda: chain(draft(), "send"), "drafts"),  # type: ignore[arg-type]
        (lambda: chain("send"), "drafts"),  # type: ignore[arg-type]
        (lambda: chain(draft().then(draft(1)), draft(2)), "behind it already"),
        (lambda: chain(draft(1), draft(2).then(draft(3)), draft(4)), "behind it already"),
        (lambda: chain(draft(1), draft(2), draft(1)), "the same draft twice"),
        (lambda: draft().then(draft(1), draft(1)), "the same draft twice"),
        (lambda: chain(*map(draft, range(MOST_LINKS + 1))), "at most 100 drafts in all"),
        (lambda: draft().then(*map(draft, range(MOST_LINKS))), "at most 100 drafts"),
        (lambda: draft().then(draft(1, payload=b"x" * LARGEST_CHAIN)), "at most 65536 bytes"),
        (lambda: draft().then(draft(1, options=Options(metadata={"a": "x" * (LARGEST_METADATA - 20)}))), "8192 bytes"),
    ],
)
def test_an_impossible_chain_is_refused_where_it_is_written(make: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        make()


@pytest.mark.spec("CHAIN-09")
def test_the_longest_chain_can_be_stored_and_read() -> None:
    options = chain(*map(draft, range(MOST_LINKS))).options
    assert len(links(unpack(pack(options)))) == MOST_LINKS - 1
    draft().then(*map(draft, range(1, MOST_LINKS)))


@pytest.mark.spec("PASS-11")
def test_the_path_to_a_link() -> None:
    tree = draft(1).then(draft(2), draft(3).then(draft(4), draft(5)))
    paths = [[link.kind for link in path_to(tree.options, n.to_bytes(16))] for n in (2, 3, 5, 1, 9)]
    assert paths == [["job2"], ["job3"], ["job3", "job5"], [], []]
