from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from stoker import other_systems
from stoker.app import Stoker
from stoker.codec.error_text import describe_error
from stoker.codec.signature import Raw
from stoker.engines.memory import MemoryEngine
from stoker.model.errors import InvalidInput, InvalidOption, InvalidPayload, UnknownOption
from stoker.model.unique import Unique


@pytest.fixture
def app() -> Stoker:
    return Stoker(MemoryEngine())


# --- the app ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-26")
@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("mysql://user:secret@host/db", r"unknown scheme; known are memory://.*'mysql://\.\.\.'"),
        ("jobs.db", "must start with one of memory://"),
        ("", "is empty; leave it out"),
        ("sqlite://jobs.db", "three slashes"),
        ("sqlite:///%00", "NUL or a line break"),
        ("sqlite:///a%0Ab.db", "NUL or a line break"),
        ("sqlite:///a\nb.db", "contains a line break"),
        (f"sqlite:///{'x' * 248}", "path: is too long for a file"),
        (f"sqlite:///{'x/' * 2_000}jobs.db", "path: is too long for a file"),
        ("sqlite:///jobs.db?busy_timeout=nan", "busy_timeout: must be 0 to"),
        ("sqlite:///jobs.db?busy_timeout=-1", "busy_timeout: must be 0 to"),
        ("memory://?capacity=many", "capacity"),
        ("redis://host/0?prefix=a%20b", "prefix"),
        ("redis://host/0?prefix=a:b", "prefix: must not contain a colon"),
        ("postgresql://host/db?migrate=maybe", "migrate"),
    ],
)
def test_a_wrong_url_is_refused_where_it_is_written(url: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint) as refused:
        Stoker(url)
    assert "secret" not in str(refused.value)
    assert "\\u" not in str(refused.value)


@pytest.mark.spec("API-26")
def test_a_wrong_option_of_the_app_is_refused_where_it_is_written() -> None:
    wrong: Any = Stoker
    with pytest.raises(UnknownOption, match="no such option") as refused:
        wrong("memory://", retires=3)
    for known in ("attempts", "capacity", "event_buffer", "tenant_scope"):
        assert known in str(refused.value)
    with pytest.raises(TypeError, match="did you mean capacity"):
        wrong("memory://", capaciti=3)
    with pytest.raises(UnknownOption, match="busy_timeout"):
        wrong("sqlite:///x.db", capacity=3)
    with pytest.raises(InvalidOption, match="give it where the engine is made"):
        wrong(MemoryEngine(), capacity=3)
    with pytest.raises(UnknownOption, match="attempts=4"):
        wrong(MemoryEngine(), retries=3)


@pytest.mark.spec("API-26")
def test_making_an_app_opens_nothing(tmp_path: Path) -> None:
    code = "from stoker import Stoker; Stoker('sqlite:///not-made.db')"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=240, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spec("INPUT-12")
async def test_what_is_no_draft_is_refused_by_name(app: Stoker) -> None:
    wrong: Any = app
    for call in (wrong.enqueue(None), wrong.enqueue_many([1])):
        with pytest.raises(InvalidInput, match=r"must be drafts, such as task.draft\(...\); got (None|1)\."):
            await call
    with pytest.raises(InvalidInput, match="must be a list or another iterable of drafts"):
        await wrong.enqueue_many(None)
    await app.close()


@pytest.mark.spec("INPUT-12")
@pytest.mark.parametrize("metadata", ["ab", 5, [("a", "b")]])
def test_metadata_that_is_no_map_is_refused(app: Stoker, metadata: Any) -> None:
    with pytest.raises(InvalidInput, match="metadata: must map text to text"):
        app.task(name="work")(lambda: None).using(metadata=metadata)


@pytest.mark.spec("INPUT-12")
def test_raw_json_that_is_no_utf_8_is_a_value_error(app: Stoker) -> None:
    app.declare("work")
    with pytest.raises(ValueError, match="surrogates not allowed"):
        app.draft("work", Raw("\ud800"))
    with pytest.raises(InvalidPayload, match="is not UTF-8 at byte 0"):
        app.draft("work", Raw(b"\xed\xa0\x80"))


@pytest.mark.spec("INPUT-13")
def test_an_error_never_quotes_a_name_in_full(app: Stoker) -> None:
    long: str = "x" * 1_000_000
    task: Any = app.task(name="work")(lambda: None)
    calls: list[Callable[[], Any]] = [
        lambda: app.draft(long),
        lambda: task.draft(**{long: 1}),
        lambda: task.using(**{long: 1}),
        lambda: app.queue(long),
        lambda: app.draft("work", {long: 1}),
    ]
    for call in calls:
        with pytest.raises(Exception, match="x") as refused:
            call()
        assert len(str(refused.value)) < 5_000


class Letter(msgspec.Struct):
    subject: str
    body: bytes = b""


@pytest.mark.spec("DATA-24")
def test_bytes_for_text_are_refused_wherever_the_hint_says_text(app: Stoker) -> None:
    def send(
        to: str,
        copies: tuple[str, ...] = (),
        letter: Letter | None = None,
        raw: bytes = b"",
        rest: Any = 0,
        order: int | str = 0,
    ) -> None: ...

    task: Any = app.task(send)
    wrong: Any = Letter
    for draft in (
        lambda: task.draft(b"ada"),
        lambda: task.draft(memoryview(b"ada")),
        lambda: task.draft("ada", order=b"7"),
        lambda: task.draft("ada", copies=("bob", b"carl")),
        lambda: task.draft("ada", copies=["bob", memoryview(b"carl")]),
        lambda: task.draft("ada", letter=wrong(b"subject")),
        lambda: task.draft("ada", letter={"subject": bytearray(b"subject")}),
        lambda: app.draft("send", {"to": b"ada"}),
        lambda: app.draft("send", [b"ada"]),
    ):
        with pytest.raises(
            InvalidPayload, match=r"send\(\w+\): Expected `(int \| )?str`, got `bytes`.*declare the parameter"
        ):
            draft()
    assert task.draft("ada", letter=Letter("subject", b"body"), raw=b"raw", rest=[b"any"]).payload
    assert task.draft("ada", raw=memoryview(b"raw")).payload == task.draft("ada", raw=b"raw").payload


@pytest.mark.spec("DATA-25")
async def test_errors_about_arguments_name_the_type_and_not_the_value(app: Stoker) -> None:
    def pay(card: int, mode: Literal["now", "later"] = "now") -> None: ...

    task: Any = app.task(pay)
    secret = "4111111111111111x"
    errors: list[Exception] = []
    for call in (
        lambda: task.draft(secret),
        lambda: task.draft(1, secret),
        lambda: task.draft(1, other=secret),
        lambda: app.draft("pay", {"card": secret}),
        lambda: task.draft({secret: float("nan")}),
        lambda: task.signature.decode(msgspec.json.encode({"card": secret})),
        lambda: task.signature.decode(msgspec.json.encode({"card": 1, "mode": secret})),
        lambda: task.signature.decode(msgspec.json.encode([1, "now", secret])),
    ):
        with pytest.raises(InvalidInput, match="pay") as refused:
            call()
        errors.append(refused.value)
    for error in errors:
        assert secret not in describe_error(error)
        assert re.search(r"got (`?str`?|float|text|a list|'pay\(int, (other=)?str\)')\.", str(error))
    await app.close()


# --- words of other systems -------------------------------------------------------------------------------------


@pytest.mark.spec("API-27")
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("retries", "attempts=4"),
        ("max_retries", "attempts=4"),
        ("countdown", r"using\(delay=seconds\)"),
        ("eta", r"using\(at=moment\)"),
        ("time_limit", "timeout="),
        ("rate_limit", r"jobs\.budget\(name\)\.spend\(\)"),
    ],
)
def test_an_option_of_another_system_gets_a_hint(app: Stoker, name: str, hint: str) -> None:
    @app.task
    def work() -> None: ...

    wrong: Any = app
    given = {name: 3}
    for refuse in (
        lambda: wrong.task(**given)(print),
        lambda: work.using(**given),  # type: ignore[arg-type]
        lambda: app.draft("work", **given),  # type: ignore[arg-type]
        lambda: app.declare("other", **given),  # type: ignore[arg-type]
        lambda: wrong.__class__("memory://", **given),
    ):
        with pytest.raises(UnknownOption, match=f"what you may know as {name} is .*{hint}.*; known are "):
            refuse()


@pytest.mark.spec("API-27")
@pytest.mark.parametrize("name", ["delay", "apply_async", "send", "defer", "kiq"])
def test_a_method_of_another_system_gets_a_hint(app: Stoker, name: str) -> None:
    @app.task
    def work() -> None: ...

    with pytest.raises(
        AttributeError, match=rf"task 'work' has no '{name}'; what you may know as {name}\(\) is .*enqueue"
    ):
        getattr(work, name)
    with pytest.raises(AttributeError, match=r"task 'work' has no 'dealy'$"):
        work.dealy  # type: ignore[attr-defined]
    assert not hasattr(work, name)


@pytest.mark.spec("API-27")
def test_no_hint_hides_something_that_exists(app: Stoker) -> None:
    @app.task
    def work() -> None: ...

    assert [name for name in other_systems.METHODS if name in dir(work)] == []


@pytest.mark.spec("API-27")
def test_any_other_misuse_of_using_is_python_s_own_error(app: Stoker) -> None:
    @app.task
    def work() -> None: ...

    with pytest.raises(TypeError, match="positional") as refused:
        work.using("mail")  # type: ignore[call-arg]
    assert not isinstance(refused.value, UnknownOption)


# --- handlers ---------------------------------------------------------------------------------------------------


class Mailer:
    def send(self, to: str) -> None: ...

    @classmethod
    def make(cls) -> None: ...

    @staticmethod
    def check(to: str) -> bool:
        return bool(to)

    def __call__(self) -> Iterator[int]:
        yield 1


@pytest.mark.spec("API-28")
@pytest.mark.parametrize(
    ("fn", "complaint"),
    [
        (Mailer, "task 'Mailer': is a class"),
        (Mailer.send, "task 'send': is a method, and a worker has no object"),
        (functools.partial(Mailer.send), "is a method"),
        (vars(Mailer)["make"], "must be a function; @staticmethod, @classmethod and the like go above"),
        (Mailer(), "is a generator"),
        ("send", r"must be a function; a name is given as @jobs\.task\(name='send'\)"),
        (7, "must be a function"),
    ],
    ids=["class", "method", "partial", "classmethod", "generator", "text", "number"],
)
def test_what_cannot_be_a_handler_is_refused_in_one_sentence(app: Stoker, fn: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        app.task(fn)
    assert app.tasks == {}


@pytest.mark.spec("API-28")
def test_functions_of_a_class_that_need_no_object_are_handlers(app: Stoker) -> None:
    for name, fn in (("bound", Mailer().send), ("static", Mailer.check), ("class", Mailer.make)):
        app.task(name=name)(fn)
    assert list(app.tasks) == ["bound", "static", "class"]


# --- key functions ----------------------------------------------------------------------------------------------


@pytest.mark.spec("API-29")
@pytest.mark.parametrize(
    "key",
    [
        lambda: "k",
        lambda to: to,
        lambda to, subject, *, copy, more: to,
        lambda *, to: to,
        lambda to, subject=1, /, *, kopie=0: to,
    ],
)
def test_a_key_function_that_does_not_take_the_arguments_is_refused_when_declared(app: Stoker, key: Any) -> None:
    def send(to: str, subject: str = "", *, copy: int = 0) -> None: ...

    with pytest.raises(InvalidInput, match=r"must take the arguments of the task, send\(to: .*, but takes \("):
        app.task(unique=key)(send)
    assert app.tasks == {}
    task = app.task(send)
    with pytest.raises(InvalidInput, match="must take the arguments of the task"):
        task.using(unique=key)


@pytest.mark.spec("API-29")
@pytest.mark.parametrize(
    "key",
    [
        lambda to, subject="", *, copy=0: f"{to}/{subject}/{copy}",
        lambda a, b="", **more: f"{a}/{b}/{more.get('copy', 0)}",
        lambda to, **more: f"{to}/{more.get('subject', '')}/{more.get('copy', 0)}",
        lambda *, to, subject="", copy=0: f"{to}/{subject}/{copy}",
    ],
    ids=["alike", "other names", "rest by keyword", "keywords only"],
)
def test_a_key_function_gets_the_arguments_as_it_takes_them(app: Stoker, key: Any) -> None:
    @app.task(unique=key)
    def send(to: str, subject: str = "", *, copy: int = 0) -> None: ...

    for draft, wanted in (
        (send.draft("a"), "a//0"),
        (send.draft("a", "b"), "a/b/0"),
        (send.draft("a", subject="b", copy=1), "a/b/1"),
        (send.draft(to="a", subject="b"), "a/b/0"),
    ):
        assert draft.unique == Unique(wanted)


@pytest.mark.spec("API-29")
def test_key_functions_of_variable_arguments_get_the_call_as_it_is(app: Stoker) -> None:
    @app.task(unique=lambda *args, **more: f"{args}{more}")
    def work(first: int, *rest: int, **named: int) -> None: ...

    assert work.draft(1, 2, x=3).unique == Unique("(1, 2){'x': 3}")
    app.task(name="c", unique=dict.__getitem__)(lambda a, b: None)
