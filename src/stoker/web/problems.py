"""What went wrong, for people and for programs: a status, a code, a sentence; never a driver's words."""

from __future__ import annotations

from datetime import datetime

import msgspec

from stoker.model.errors import (
    CorruptRecord,
    Duplicate,
    EngineBusy,
    EngineError,
    EngineFull,
    EngineReadOnly,
    EngineRefused,
    EngineSlow,
    Forbidden,
    InvalidInput,
    InvalidTransition,
    KeyHeld,
    NotFound,
    PayloadTooLarge,
    StokerError,
    UnknownTask,
    WrongState,
    WrongStatus,
)


class Problem(Exception):
    """An answer that is a refusal."""

    def __init__(self, status: int, code: str, detail: str, **more: object) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.more = more
        self.headers: dict[str, str] = {}


TITLES = {
    400: "The request cannot be read",
    401: "Sign in first",
    403: "You may not do this",
    404: "There is no such thing",
    405: "This cannot be done here",
    408: "The request came too slowly",
    409: "Its state does not allow it",
    413: "The request is too large",
    415: "The body is of a type that is not read here",
    421: "This is not the host you meant",
    422: "A value is wrong",
    429: "Too many requests",
    500: "Something broke",
    503: "The store does not answer",
}


class ProblemDetails(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Problem details (RFC 9457). `code` names the problem for programs, `request` finds it in the log."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    request: str
    field: str | None = None
    job: str | None = None
    job_status: str | None = None
    action: str | None = None
    key: str | None = None
    count: int | None = None
    counted_at: datetime | None = None


def details(problem: Problem, request: str) -> ProblemDetails:
    """The problem as it is sent."""
    more = {name: value for name, value in problem.more.items() if name in ProblemDetails.__struct_fields__}
    return ProblemDetails(
        title=TITLES.get(problem.status, "Refused"),
        status=problem.status,
        code=problem.code,
        detail=problem.detail,
        request=request,
        **more,  # type: ignore[arg-type]
    )


PLACES = ("cursor", "before")
"""What callers in Python give to get the page behind another one; a request says `after`."""

AWAY = "The store does not answer. Nothing was changed. Try again in a moment."


def of(error: Exception) -> Problem | None:
    """The refusal that an error means; None: it is a fault of ours."""
    match error:
        case Problem():
            return error
        case TimeoutError():
            return Problem(503, "store_unavailable", AWAY)
        case Forbidden():
            return Problem(403, "role", str(error))
        case NotFound():
            return Problem(404, "not_found", str(error), job=error.job_id)
        case WrongStatus():
            return Problem(
                409, "wrong_status", str(error), job=error.job_id, job_status=str(error.status), action=error.action
            )
        case InvalidTransition():
            return Problem(409, "wrong_status", str(error), job_status=str(error.before), action=str(error.after))
        case WrongState():
            return Problem(409, "wrong_state", str(error), action=error.action)
        case KeyHeld():
            return Problem(409, "key_taken", str(error), job=error.job_id, key=error.key)
        case Duplicate():
            return Problem(409, "duplicate", str(error), job=error.job_id, key=error.key)
        case PayloadTooLarge():
            return Problem(413, "too_large", str(error), field=error.field)
        case InvalidInput() if error.field in PLACES:
            return of(error.named("after"))
        case InvalidInput():
            return Problem(422, "invalid", str(error), field=error.field)
        case UnknownTask():
            return Problem(422, "unknown_task", str(error), field="kind")
        case CorruptRecord():
            return Problem(500, "unreadable", str(error))
        case EngineRefused() if error.__cause__ is None:  # else it holds a driver's words
            return Problem(409, "refused", str(error))
        case EngineRefused():
            refused = "The store does not let the dashboard do this. Nothing was changed. Check its role and grants."
            return Problem(503, "store_refused", refused)
        case EngineFull():
            return Problem(503, "store_full", "The store has no room left. Nothing was stored.")
        case EngineReadOnly():
            return Problem(503, "store_read_only", "The store takes no writes. Nothing was changed.")
        case EngineSlow():
            return Problem(503, "too_slow", "The store stopped this question: it took too long. Ask for less.")
        case EngineBusy():
            return Problem(503, "store_busy", "The store is busy. Nothing was changed. Try again in a moment.")
        case EngineError():
            return Problem(503, "store_unavailable", AWAY)
        case StokerError():
            return Problem(409, "refused", str(error))
    return None
