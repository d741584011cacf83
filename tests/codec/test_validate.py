from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.app import Stoker
from stoker.codec.signature import Raw, Signature
from stoker.engines.memory import MemoryEngine
from stoker.model.errors import InvalidInput, InvalidPayload, PayloadMismatch


@dataclass
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("is odd")


@pytest.fixture
def app() -> Stoker:
    return Stoker(MemoryEngine())


@pytest.mark.spec("TASK-07")
@pytest.mark.parametrize(
    ("args", "kwargs", "parameter", "why"),
    [
        (("seven",), {}, "image", "Expected `int`, got `str`"),
        ((7,), {"width": "wide"}, "width", "Expected `int"),
        ((7,), {"mode": "round"}, "mode", "Invalid enum value; got str"),
        ((7,), {"even": Even(2), "tags": ["a", 1]}, "tags", r"Expected `str`, got `int` - at `\$\[1\]`"),
        ((None,), {}, "image", "Expected `int`, got `null`"),
    ],
)
def test_a_wrong_argument_is_refused_at_the_enqueue_by_name(
    app: Stoker, args: Any, kwargs: Any, parameter: str, why: str
) -> None:
    @app.task
    async def resize(
        image: int,
        *,
        width: int | None = None,
        mode: Literal["fit", "fill"] = "fit",
        even: Even | None = None,
        tags: list[str] | None = None,
    ) -> None: ...

    task: Any = resize
    with pytest.raises(InvalidInput, match=rf"resize\({parameter}\): {why}.*Nothing was stored") as refused:
        task.draft(*args, **kwargs)
    assert str(refused.value).count("got ") <= 1, "a type is said once"
    assert refused.value.field == f"resize({parameter})"
    assert not isinstance(refused.value, PayloadMismatch)
    with pytest.raises(InvalidPayload):
        task.using(queue="other").draft(*args, **kwargs)


@pytest.mark.spec("TASK-07")
def test_constructors_of_the_users_classes_have_a_say(app: Stoker) -> None:
    @app.task
    def work(even: Even) -> None: ...

    odd = Even(2)
    odd.number = 3
    with pytest.raises(InvalidPayload, match=r"work\(even\): .*is odd"):
        work.draft(odd)


@pytest.mark.spec("TASK-07")
def test_variable_arguments_and_jobs_by_name_are_checked_too(app: Stoker) -> None:
    @app.task
    def add(*numbers: int, **named: float) -> None: ...

    assert add.draft(1, 2, x=1.5).payload == b'{"*":[1,2],"x":1.5}'
    with pytest.raises(InvalidPayload, match=r"add\(numbers\)"):
        add.draft(1, "two")  # type: ignore[arg-type]
    with pytest.raises(InvalidPayload, match=r"add\(named\)"):
        add.draft(x="one")  # type: ignore[arg-type]
    assert app.draft("add", [1, 2]).payload == b"[1,2]"
    for wrong in ({"x": "one"}, ["one"], Raw(b'["one"]')):
        with pytest.raises(InvalidPayload, match="add"):
            app.draft("add", wrong)
    app.declare("elsewhere")
    assert app.draft("elsewhere", {"anything": "goes"}).kind == "elsewhere"


@pytest.mark.spec("TASK-07")
def test_validate_false_leaves_it_to_the_worker(app: Stoker) -> None:
    @app.task(validate=False)
    def work(n: int) -> None: ...

    wrong: Any = work
    for draft in (wrong.draft("seven"), wrong.using(queue="q").draft("seven"), app.draft("work", {"n": "seven"})):
        assert draft.payload == b'{"n":"seven"}'
    with pytest.raises(InvalidInput, match=r"work\(\)"):
        wrong.draft()


HINTS: list[Any] = [
    int,
    float,
    bool,
    str,
    bytes,
    datetime,
    UUID,
    Decimal,
    list[int],
    dict[str, int],
    int | None,
    Even,
    Any,
]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(-5, 5),
    st.text("a1-.", max_size=3),
    st.binary(max_size=3),
    st.just(datetime(2030, 1, 1, tzinfo=UTC)),
    st.uuids(),
    st.decimals(-5, 5, allow_nan=False),
    st.lists(st.integers(0, 3), max_size=2),
    st.dictionaries(st.text("ab", max_size=2), st.integers(0, 3), max_size=2),
    st.integers(0, 3).map(lambda n: Even(2 * n)),
)


@pytest.mark.spec("TASK-07")
@given(hint=st.sampled_from(HINTS), value=VALUES)
def test_what_a_worker_takes_is_taken_and_what_it_refuses_is_refused(hint: Any, value: Any) -> None:
    def work(value: Any) -> None: ...

    work.__annotations__["value"] = hint
    signature = Signature(work)
    if hint is str and isinstance(value, bytes):
        with pytest.raises(InvalidPayload, match="got `bytes`"):
            signature.encode((value,), {})
        return
    payload = signature.encode((value,), {})
    refused: list[tuple[str, str]] = []
    for read in (signature.decode, signature.check):
        try:
            read(payload)
        except InvalidPayload as error:
            refused.append((error.field, error.why))
    assert refused in ([], refused[:1] * 2), "both refuse, with the same words, or neither"
