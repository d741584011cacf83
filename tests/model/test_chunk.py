from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stoker.model.chunk import LARGEST_CHUNK, Chunk, answers
from stoker.model.errors import ChunkMismatch, InvalidInput


@pytest.mark.spec("CHUNK-18")
@pytest.mark.parametrize("size", [0, -1, LARGEST_CHUNK + 1, 2.0, "10", None, True])
def test_a_size_that_is_no_size_is_refused(size: Any) -> None:
    with pytest.raises(InvalidInput, match=r"Chunk\.size: must be a whole number from 1 to 10000"):
        Chunk(size)


@pytest.mark.spec("CHUNK-18")
@pytest.mark.parametrize("within", [-0.1, float("nan"), "soon", timedelta(seconds=-1)])
def test_a_wait_that_is_no_wait_is_refused(within: Any) -> None:
    with pytest.raises(InvalidInput, match=r"Chunk\.within"):
        Chunk(10, within=within)


def test_a_wait_is_seconds_or_a_timedelta() -> None:
    assert Chunk(10) == Chunk(10, within=1.0)
    assert Chunk(1, within=timedelta(milliseconds=250)).within == 0.25
    assert Chunk(LARGEST_CHUNK, within=0).within == 0


@pytest.mark.spec("CHUNK-03", "CHUNK-04")
def test_each_job_has_its_own_answer() -> None:
    error = ValueError("second")
    assert answers("index", None, 3) == [None, None, None]
    assert answers("index", ["a", error, None], 3) == ["a", error, None]
    assert answers("index", ("a", "b"), 2) == ["a", "b"]
    assert answers("index", [], 0) == []


@pytest.mark.spec("CHUNK-06")
@pytest.mark.parametrize(
    ("returned", "words"), [([1, 2], "a list of 2"), ([], "a list of 0"), ("abc", "a value of type str")]
)
def test_an_answer_for_another_number_of_jobs_names_both(returned: object, words: str) -> None:
    with pytest.raises(ChunkMismatch, match=rf"index\(\) returned {words} for a chunk of 3 jobs[.] Every"):
        answers("index", returned, 3)
