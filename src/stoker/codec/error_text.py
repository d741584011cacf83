"""Exceptions as text, for the job's record.

The worker calls it for every failed attempt. The rule it keeps: for any exception the text is bounded, has no NUL or
lone surrogates, and building it never raises; a job must not hang because its error cannot be stored. Only text is
kept: no class is ever rebuilt from it, and local variables (secrets) are never shown.

The exception that ended the attempt comes first, then its causes, then the members of a group, so that cutting the end
costs the least.
"""

from __future__ import annotations

import linecache
import re
from collections import deque
from collections.abc import Iterable, Iterator
from types import FrameType, TracebackType
from typing import Final

from stoker.model.errors import StokerError

ERROR_LIMIT: Final = 64 * 1024
"""Bytes of a stored error."""

FRAMES_FIRST: Final = 10
FRAMES_LAST: Final = 30
MEMBERS: Final = 10
EXCEPTIONS: Final = 40
LINE: Final = 300
_CUT: Final = "… (cut)"
_BEGINS: Final = re.compile(r"\n(?=Traceback |Caused by |While handling |Member )")
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def describe_error(error: BaseException, limit: int = ERROR_LIMIT) -> str:
    """Type, message, notes and traceback of `error`, its causes and its members: at most `limit` bytes of UTF-8."""
    lines: list[str] = []
    room = limit
    try:
        for line in _describe(error, limit // 4):
            lines.append(line)
            room -= len(line) + 1
            if room < 0:
                break
    except Exception as trouble:  # noqa: BLE001 - an exception may override any attribute this module reads
        lines.append(f"(the rest cannot be described: {type(trouble).__name__})")
    return _clean("\n".join(lines), limit)


def inside(message: str) -> str:
    """A message that shows another error: its lines are set in, or readers took them for this error's own."""
    return _BEGINS.sub("\n ", message)


def text_of(value: object, limit: int = ERROR_LIMIT) -> str:
    """`str(value)`, bounded and fit to be stored; never raises."""
    return _clean(_text(value, limit), limit)


def describe_frames(frames: Iterable[FrameType], limit: int = ERROR_LIMIT) -> str:
    """A stack as text, the outermost frame first, without those in Stoker: at most `limit` bytes of UTF-8."""
    found = ((frame, frame.f_lineno) for frame in frames if not _is_own(frame))
    return _clean("\n".join(_frames(found)), limit)


def safe(text: str) -> str:
    """Escape control and direction characters; tabs and line ends stay."""
    return _UNSAFE.sub(_escape, text)


def one_line(text: str, longest: int = 200) -> str:
    """Return the same on one line, shortened."""
    text = " ".join(safe(text[: longest * 2]).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _describe(error: BaseException, longest: int) -> Iterator[str]:
    """The error, its causes and its members, each once, nearest first."""
    seen = {id(error)}
    waiting = deque([("", error)])
    count = 0
    while waiting:
        if count == EXCEPTIONS:
            yield "… further exceptions left out"
            return
        label, current = waiting.popleft()
        count += 1
        yield from _one(label, current, longest)
        for label, other in _related(current):
            if id(other) not in seen:
                seen.add(id(other))
                waiting.append((label, other))


def _one(label: str, error: BaseException, longest: int) -> Iterator[str]:
    name, message = _name(error), inside(_text(error, longest))
    yield f"{label}{name}: {message}" if message else f"{label}{name}"
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list | tuple):
        yield from (inside(f"\n{_text(note, longest)}")[1:] for note in notes[:MEMBERS])
    frames = _frames((step.tb_frame, step.tb_lineno) for step in user_frames(error))
    if (first := next(frames, None)) is not None:
        yield "Traceback (most recent call last):"
        yield first
        yield from frames


def _related(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    if error.__cause__ is not None:
        yield "Caused by ", error.__cause__
    elif error.__context__ is not None and not error.__suppress_context__:
        yield "While handling ", error.__context__
    if isinstance(error, BaseExceptionGroup):
        members = error.exceptions
        for number, member in enumerate(members[:MEMBERS], 1):
            yield f"Member {number} of {len(members)}: ", member


def user_frames(error: BaseException) -> Iterator[TracebackType]:
    """The steps of a traceback without those in Stoker: how Stoker called a handler or middleware tells users nothing.

    The innermost ones stay where Stoker itself went wrong: the error is none of those that it raises on purpose.
    """
    own: list[TracebackType] = []
    step = error.__traceback__
    while step is not None:
        if _is_own(step.tb_frame):
            own.append(step)
        else:
            own.clear()
            yield step
        step = step.tb_next
    if not isinstance(error, StokerError):
        yield from own


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("stoker.")


def forget_own_frames(error: BaseException) -> None:
    """Take the steps in Stoker out of an exception's traceback, for error hooks and what else reads it."""
    kept: TracebackType | None = None
    for step in reversed(list(user_frames(error))):
        kept = TracebackType(kept, step.tb_frame, step.tb_lasti, step.tb_lineno)
    error.__traceback__ = kept


def _frames(places: Iterable[tuple[FrameType, int | None]]) -> Iterator[str]:
    """The outermost frames and the innermost ones, each with its line; what lies between is only counted."""
    first: list[tuple[FrameType, int | None]] = []
    last: deque[tuple[FrameType, int | None]] = deque(maxlen=FRAMES_LAST)
    passed = 0
    for place in places:
        if len(first) < FRAMES_FIRST:
            first.append(place)
        else:
            last.append(place)
            passed += 1
    for place in first:
        yield from _frame(*place)
    if passed > len(last):
        yield f"  … {passed - len(last):,} frames left out"
    for place in last:
        yield from _frame(*place)


def _frame(frame: FrameType, line: int | None) -> Iterator[str]:
    code = frame.f_code
    yield f'  File "{code.co_filename[:LINE]}", line {line}, in {code.co_qualname[:LINE]}'
    try:
        source = linecache.getline(code.co_filename, line or 0, frame.f_globals).strip()
    except Exception:  # noqa: BLE001 - a loader of the user's; the frame is worth more than its line
        source = ""
    if source:
        yield f"    {source[:LINE]}"


def _name(error: BaseException) -> str:
    kind = type(error)
    try:
        module, name = str(kind.__module__), str(kind.__qualname__)
        if module.startswith("stoker."):  # where Stoker keeps a class is its own affair, and so is a private one
            public = next(one.__name__ for one in kind.__mro__ if not one.__name__.startswith("_"))
            module, name = "stoker", public
    except BaseException:  # noqa: BLE001 - a metaclass may do anything
        return "exception of a class without a name"
    return (name if module in ("builtins", "__main__") else f"{module}.{name}")[:LINE]


def _text(value: object, longest: int) -> str:
    """`str(value)`, shortened before anything copies it: the message may be as large as the memory."""
    try:
        text = str(value)
        return text if len(text) <= longest else text[:longest] + _CUT
    except BaseException as error:  # noqa: BLE001 - also a SystemExit from __str__: the worker only wanted to read it
        return f"(its message cannot be read: str() raised {type(error).__name__})"


def _clean(text: str, limit: int) -> str:
    data = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    mark = _CUT.encode()
    return (data[: max(limit - len(mark), 0)] + mark)[:limit].decode("utf-8", "ignore")
