"""What the server refused, in our words, whichever driver carried it."""

from __future__ import annotations

from stoker.model.errors import (
    EngineBusy,
    EngineError,
    EngineFull,
    EngineReadOnly,
    EngineRefused,
    EngineUnavailable,
    SchemaMismatch,
)


class Locked(EngineBusy):
    """A lock was not released in time. `place`: which settlement of a call waited for it, if one did."""

    place: int | None = None


GONE = frozenset({"25006", "42P05"})
BUSY = frozenset({"55P03", "57014", "40P01", "40001"})
ABSENT = frozenset({"42P01", "3F000", "42703", "42883"})


def sqlstate(error: BaseException) -> str:
    """The five characters every driver of Postgres carries."""
    return str(getattr(error, "sqlstate", None) or "")


def translated(error: BaseException, where: str) -> EngineError:
    """A driver's error in our words. Works for psycopg's errors too: they carry the same code."""
    state = sqlstate(error)
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if state == "55P03":
        return Locked(f"{where}: another transaction holds a lock for too long: {said}. Nothing was stored; try again")
    if state in BUSY:
        return EngineBusy(f"{where} was held by somebody else for too long: {said}. Nothing was stored; try again")
    if state == "25006":
        return EngineReadOnly(
            f"{where} refuses writes: {said}. It may be a standby; Stoker connects anew at the next call"
        )
    if state in {"53100", "53200"} or state.startswith("54"):
        return EngineFull(f"{where} has no room: {said}. Nothing was stored. Make room, and try again")
    if state in ABSENT:
        return SchemaMismatch(f"{where} has no such schema, or an older one: {said}. Run: stoker migrate")
    if state == "42501" or state.startswith("28") or state == "3D000":
        return EngineRefused(f"{where} refused: {said}. Check the role, its password and its grants")
    if not state or state[:2] in ("08", "57", "53") or state in GONE:
        return EngineUnavailable(f"{where} cannot be reached: {said}. Nothing acknowledged is lost; Stoker tries again")
    return EngineError(f"{where} answered {state}: {said}. The call changed nothing")
