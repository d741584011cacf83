"""Postgres errors of any driver, translated into Stoker's errors."""

from __future__ import annotations

from stoker.model.errors import (
    EngineBusy,
    EngineError,
    EngineFull,
    EngineReadOnly,
    EngineRefused,
    EngineSlow,
    EngineUnavailable,
    SchemaMismatch,
)


class Locked(EngineBusy):
    """Another transaction held a lock too long. `place`: index of the settlement that waited, if one did."""

    place: int | None = None


GONE = frozenset({"25006", "42P05"})
BUSY = frozenset({"55P03", "40P01", "40001"})
STOPPED = "57014"
LOST = "SLOST"
"""Raised by our functions `check_claim` and `settle_claim`."""
ABSENT = frozenset({"42P01", "3F000", "42703", "42883"})


def sqlstate(error: BaseException) -> str:
    """Return the five-character SQLSTATE, which every Postgres driver carries."""
    return str(getattr(error, "sqlstate", None) or "")


def is_lost(error: BaseException) -> bool:
    """Whether a function of ours refused because a claim is no longer its worker's."""
    return error.__cause__ is not None and sqlstate(error.__cause__) == LOST


def translated(error: BaseException, where: str) -> EngineError:
    """Return Stoker's error for a driver's error (asyncpg or psycopg)."""
    state = sqlstate(error)
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if state == "55P03":
        return Locked(f"{where}: another transaction holds a lock for too long: {text}. Nothing was stored; try again")
    if state == STOPPED:
        return EngineSlow(f"{where} stopped a statement that took too long: {text}. Nothing was stored; try again")
    if state in BUSY:
        return EngineBusy(
            f"{where} was blocked by another transaction for too long: {text}. Nothing was stored; try again"
        )
    if state == "25006":
        return EngineReadOnly(
            f"{where} refuses writes: {text}. It may be a standby; Stoker reconnects at the next call"
        )
    if state in {"53100", "53200"} or state.startswith("54"):
        return EngineFull(f"{where} has no room: {text}. Nothing was stored. Make room, and try again")
    if state in ABSENT:
        return SchemaMismatch(f"{where} lacks Stoker's schema, or has an older one: {text}. Run: stoker migrate")
    if state == "3D000":
        return EngineRefused(f"{where} refused: {text}. Create it, or check the name in the URL")
    if state == "42501" or state.startswith("28"):
        return EngineRefused(f"{where} refused: {text}. Check the role, its password and its grants")
    if not state or state[:2] in ("08", "57", "53") or state in GONE:
        return EngineUnavailable(f"{where} cannot be reached: {text}. Nothing acknowledged is lost; Stoker tries again")
    return EngineError(f"{where} returned error {state}: {text}. The call changed nothing")
