from __future__ import annotations

import sys
import traceback
import tracemalloc
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.codec.error_text import ERROR_LIMIT, EXCEPTIONS, describe_error, forget_own_frames, text_of
from stoker.model.errors import StokerError
from stoker.model.same_error import own_frame


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def sound(text: str, limit: int = ERROR_LIMIT) -> bool:
    """Text that every engine can store."""
    return "\0" not in text and len(text.encode("utf-8")) <= limit


@pytest.mark.spec("DATA-19")
def test_an_error_reads_as_type_message_notes_and_traceback() -> None:
    error = ValueError("no such size")
    error.add_note("while resizing 7")
    lines = describe_error(raised(error)).splitlines()
    assert lines[0] == "ValueError: no such size"
    assert lines[1] == "while resizing 7"
    assert lines[2] == "Traceback (most recent call last):"
    assert lines[3].endswith("in raised")
    assert "test_error_text.py" in lines[3]
    assert lines[4] == "    raise error"


@pytest.mark.spec("DATA-19")
def test_an_error_inside_a_message_is_set_in() -> None:
    """Its frames and causes are not those of the error that shows it."""
    other = 'Traceback (most recent call last):\n  File "/srv/tool.py", line 7, in draw\nOSError: full'
    error = RuntimeError(f"the tool failed:\n{other}\nCaused by ValueError")
    error.add_note(other)
    lines = describe_error(raised(error)).splitlines()
    assert [line.strip() for line in lines if line.startswith("Traceback ")] == ["Traceback (most recent call last):"]
    assert own_frame("\n".join(lines)).endswith("in raised")
    assert " Caused by ValueError" in lines


@pytest.mark.spec("DATA-19")
def test_errors_without_traceback_or_message() -> None:
    assert describe_error(ValueError()) == "ValueError"
    assert describe_error(KeyError("x")) == "KeyError: 'x'"
    assert describe_error(pytest.UsageError("x")) == "pytest.UsageError: x"


@pytest.mark.spec("DATA-19")
def test_causes_follow_the_error_and_suppressed_ones_do_not() -> None:
    def chained(how: str) -> str:
        try:
            try:
                raise KeyError("root")
            except KeyError as root:
                if how == "context":
                    raise ValueError("top")  # noqa: B904
                raise ValueError("top") from (root if how == "cause" else None)
        except ValueError as top:
            return describe_error(top)

    assert chained("cause").index("ValueError: top") < chained("cause").index("Caused by KeyError: 'root'")
    assert "While handling KeyError: 'root'" in chained("context")
    assert "root'" not in chained("suppressed")


@pytest.mark.spec("DATA-19")
def test_groups_show_their_members() -> None:
    group = ExceptionGroup("several", [ValueError(1), ExceptionGroup("inner", [KeyError(2)]), OSError(3)])
    text = describe_error(raised(group))
    assert text.startswith("ExceptionGroup: several (3 sub-exceptions)")
    for part in ("Member 1 of 3: ValueError: 1", "Member 2 of 3: ExceptionGroup: inner", "Member 1 of 1: KeyError: 2"):
        assert part in text
    assert "Member 3 of 3: OSError: 3" in text


@pytest.mark.spec("DATA-20")
def test_a_wide_group_and_a_long_chain_are_cut() -> None:
    wide = ExceptionGroup("wide", [ValueError(n) for n in range(10_000)])
    assert describe_error(wide).count("Member") == 10
    chain: BaseException = ValueError("first")
    for n in range(5_000):
        link = ValueError(n)
        link.__cause__ = chain
        chain = link
    text = describe_error(chain)
    assert text.count("Caused by") == EXCEPTIONS - 1
    assert text.endswith("further exceptions left out")
    tower: Exception = ValueError("first")
    for _ in range(5_000):
        tower = ExceptionGroup("tower", [tower])
    assert sound(describe_error(tower))


@pytest.mark.spec("DATA-20")
def test_cycles_end() -> None:
    a, b = ValueError("a"), ValueError("b")
    a.__cause__, b.__cause__ = b, a
    assert describe_error(a) == "ValueError: a\nCaused by ValueError: b"
    a.__cause__ = a
    assert describe_error(a) == "ValueError: a"


@pytest.mark.spec("DATA-20")
def test_a_deep_traceback_keeps_both_ends() -> None:
    def down(n: int) -> NoReturn:
        if n == 0:
            raise ValueError("bottom")
        down(n - 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(11_000)
    try:
        with pytest.raises(ValueError, match="bottom") as caught:
            down(10_000)
    finally:
        sys.setrecursionlimit(limit)
    text = describe_error(caught.value)
    assert "in test_a_deep_traceback_keeps_both_ends" in text
    assert 'raise ValueError("bottom")' in text
    assert "9,962 frames left out" in text
    assert len(text) < 20_000


@pytest.mark.spec("DATA-20")
def test_a_huge_message_is_cut_without_being_copied() -> None:
    error = raised(ValueError("x" * 100_000_000))
    tracemalloc.start()
    try:
        text = describe_error(error)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000
    assert sound(text)
    assert "… (cut)" in text
    assert "in raised" in text  # the traceback survives a message of any length


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Fatal(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Liar(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value] # noqa: PLE0307


class Loop(Exception):
    def __str__(self) -> str:
        return str(self)


class Thorny(Exception):
    def __getattribute__(self, name: str) -> Any:
        if name == "__notes__":
            raise RuntimeError("no")
        return super().__getattribute__(name)


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name == "__qualname__":
            raise SystemExit(4)
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=Meta):
    pass


@pytest.mark.spec("DATA-20")
@pytest.mark.parametrize("kind", [Mute, Fatal, Liar, Loop, Thorny, Nameless])
def test_exceptions_that_fail_when_looked_at(kind: type[Exception]) -> None:
    text = describe_error(raised(kind("x")))
    assert sound(text)
    assert kind in (Thorny, Nameless) or f"{kind.__name__}: (its message cannot be read" in text
    assert kind is not Nameless or text.startswith("exception of a class without a name: x")


@pytest.mark.spec("DATA-20")
def test_nul_and_halves_of_pairs_are_written_out() -> None:
    assert describe_error(ValueError("a\0b\ud800c")) == "ValueError: a\\x00b\\ud800c"
    assert text_of("a\0b") == "a\\x00b"


@pytest.mark.spec("DATA-19", "DATA-20")
@given(message=st.text(st.characters(codec=None)), limit=st.integers(0, 400))
def test_any_message_within_any_limit(message: str, limit: int) -> None:
    assert sound(describe_error(raised(ValueError(message)), limit), limit)
    assert sound(text_of(message, limit), limit)


@pytest.mark.spec("DATA-19")
def test_local_variables_are_not_shown() -> None:
    def login(password: str) -> None:
        raise PermissionError("refused")

    with pytest.raises(PermissionError) as caught:
        login("hunter" + "2")
    assert "hunter2" not in describe_error(caught.value)


@pytest.mark.spec("DATA-20")
def test_code_without_source() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", "<nowhere\ud800>", "exec"), {"__name__": "x", "__loader__": Mute})
    text = describe_error(caught.value)
    assert sound(text)
    assert 'File "<nowhere\\ud800>", line 1' in text


OWN = """
class _Private(StokerError):
    pass

def pass_on(call):
    return call()

def refuse():
    raise _Private("refused")

def break_down():
    return 1 / 0
"""


def own_module() -> dict[str, Any]:
    """Functions that look like Stoker's own."""
    names: dict[str, Any] = {"__name__": "stoker.somewhere", "StokerError": StokerError}
    exec(compile(OWN, "stoker/somewhere.py", "exec"), names)
    return names


def raised_by(call: Callable[[], object]) -> BaseException:
    with pytest.raises((StokerError, ZeroDivisionError)) as caught:
        call()
    return caught.value


@pytest.mark.spec("FAILLOG-07")
def test_frames_of_stoker_are_not_in_tracebacks() -> None:
    """Not around a handler, not between it and its middleware, and not behind a call that Stoker refuses."""
    own = own_module()

    def handler() -> object:
        return own["refuse"]()

    def middleware() -> object:
        return own["pass_on"](handler)

    error = raised_by(lambda: own["pass_on"](middleware))
    told = describe_error(error)
    assert told.startswith("stoker.StokerError: refused\nTraceback")
    assert "somewhere" not in told and "_Private" not in told
    assert told.index("middleware") < told.index("handler")
    forget_own_frames(error)
    names = [one.name for one in traceback.extract_tb(error.__traceback__)]
    assert names[-2:] == ["middleware", "handler"]
    assert not {"pass_on", "refuse"} & set(names)


@pytest.mark.spec("FAILLOG-07")
def test_where_stoker_itself_breaks_its_frames_stay() -> None:
    told = describe_error(raised_by(own_module()["break_down"]))
    assert "break_down" in told


@pytest.mark.spec("FAILLOG-07")
def test_a_refusal_without_a_frame_of_the_user_has_no_traceback() -> None:
    error = raised_by(own_module()["refuse"])
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next and error.__traceback__.tb_next.tb_next
    assert describe_error(error) == "stoker.StokerError: refused"
