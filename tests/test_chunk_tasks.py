"""Tasks with `chunk=`: how they are declared, and how their jobs are enqueued."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from stoker import Chunk, InvalidInput, Stoker
from stoker.model.errors import InvalidPayload


@dataclass
class Doc:
    id: int
    text: str = ""


def make() -> Stoker:
    return Stoker("memory://")


def declared(jobs: Stoker, **options: Any) -> Any:
    @jobs.task(chunk=Chunk(10), **options)
    async def index(docs: list[Doc]) -> list[str | BaseException] | None:
        return [str(doc.id) for doc in docs]

    return index


@pytest.mark.spec("CHUNK-01")
async def test_a_job_is_enqueued_with_one_item() -> None:
    jobs = make()
    index = declared(jobs)
    assert json.loads(index.draft(Doc(1, "a")).payload) == {"docs": {"id": 1, "text": "a"}}
    assert index.draft(docs=Doc(1)).payload == index.draft(Doc(1)).payload
    for wrong in ([Doc(1)], "doc", None):
        with pytest.raises(InvalidPayload, match=r"index\(docs\)"):
            index.draft(wrong)
    with pytest.raises(InvalidInput, match="missing a required argument"):
        index.draft()
    with pytest.raises(InvalidPayload, match=r"index\(docs\)"):
        jobs.draft("index", {"docs": [1]})
    assert jobs.draft("index", [{"id": 1}]).queue == "index"
    assert index.using(unique=lambda doc: str(doc.id)).draft(Doc(7)).unique.key == "7"
    assert await index([Doc(3), Doc(4)]) == ["3", "4"], "a task stays callable as the function it was"


@pytest.mark.spec("CHUNK-10")
def test_its_queue_is_its_own_unless_one_is_given() -> None:
    assert declared(make()).draft(Doc(1)).queue == "index"
    assert declared(make(), queue="search").draft(Doc(1)).queue == "search"
    assert declared(make()).using(queue="slow").draft(Doc(1)).queue == "slow"
    assert declared(Stoker("memory://", router={"in": "routed"})).draft(Doc(1)).queue == "routed"
    assert declared(Stoker("memory://", queue="mine", namespace="shop")).draft(Doc(1)).queue == "shop.index"


def nothing() -> None: ...


def two(docs: list[Doc], more: list[Doc]) -> None: ...


def untyped(docs) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001


def bare(docs: list) -> None: ...  # type: ignore[type-arg]


def single(doc: Doc) -> None: ...


def keyword(*, docs: list[Doc]) -> None: ...


def variable(*docs: list[Doc]) -> None: ...


async def pairs(docs: dict[str, Doc]) -> None: ...


@pytest.mark.spec("CHUNK-18")
@pytest.mark.parametrize("fn", [nothing, two, untyped, bare, single, keyword, variable, pairs])
def test_a_handler_that_does_not_take_one_typed_list_is_refused(fn: Callable[..., Any]) -> None:
    jobs = make()
    with pytest.raises(InvalidInput, match=rf"{fn.__name__}\(\): a task with chunk= takes one parameter, a list"):
        jobs.task(chunk=Chunk(10))(fn)
    assert not jobs.tasks


@pytest.mark.spec("CHUNK-18")
def test_a_default_a_size_alone_and_a_process_are_refused() -> None:
    jobs = make()

    def empty(docs: list[Doc] = []) -> None: ...  # noqa: B006

    with pytest.raises(InvalidInput, match="has no default"):
        jobs.task(chunk=Chunk(10))(empty)
    with pytest.raises(InvalidInput, match=r"chunk: must be a Chunk, such as Chunk\(100"):
        jobs.task(chunk=10)(two)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="isolation: cannot be combined with chunk="):
        declared(jobs, isolation="process")
    index = declared(jobs)
    with pytest.raises(InvalidInput, match="isolation: cannot be combined with chunk="):
        index.using(isolation="process")
    with pytest.raises(InvalidInput, match="isolation: cannot be combined with chunk="):
        jobs.draft("index", [{"id": 1}], isolation="process")


def errors(docs: list[Doc]) -> list[Doc | ValueError | BaseException]:
    return []


def maybe(docs: list[Doc]) -> list[Doc | None] | None:
    return None


def anything(docs: list[Doc]) -> Any:
    return None


@pytest.mark.spec("CHUNK-01")
@pytest.mark.parametrize("fn, expected", [(errors, Doc(1)), (maybe, Doc(1)), (anything, {"id": 1})])
def test_a_result_has_the_type_of_an_item(fn: Callable[..., Any], expected: object) -> None:
    task = make().task(chunk=Chunk(10))(fn)
    assert task.signature.decode_result(b'{"id":1}') == expected
