"""Drafts with markers: which arguments come later, and whether the results that come will fit.

`Task.draft` and `jobs.draft` make them. They meet a marker only where a call cannot be encoded, so a call without one
costs nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from stoker.codec.hints import check_previous, check_results
from stoker.codec.signature import Signature, encode_payload
from stoker.model.errors import InvalidInput
from stoker.model.job import Draft, MarkedDraft
from stoker.model.markers import PREVIOUS, RESULTS, Marker, is_marked, places, positions, unmarked
from stoker.model.unique import Unique
from stoker.options import JobOptions

if TYPE_CHECKING:
    from stoker.app import Stoker


class Marks(NamedTuple):
    """Where markers stand in a payload. `signature` is None for a kind that is not known here."""

    payload: bytes
    previous: tuple[str, ...]
    results: tuple[str, ...]
    signature: Signature | None

    @property
    def marker(self) -> Marker:
        """The one that an error names."""
        return PREVIOUS if self.previous else RESULTS

    def put_on(self, app: Stoker, draft: Draft) -> MarkedDraft:
        """The draft with its markers."""
        options = replace(draft.options, previous=self.previous, results=self.results)
        return MarkedDraft.of(replace(draft, options=options), lambda kind, may_fail: self._check(app, kind, may_fail))

    def _check(self, app: Stoker, kind: str | None, may_fail: bool) -> None:
        source = None if kind is None else app.signature_of(kind)
        if self.signature is None:
            return
        if self.previous and source is not None:
            check_previous(self.signature, self.previous, source)
        if self.results:
            check_results(self.signature, self.results, source, may_fail=may_fail)

    def check_keys(self, kind: str, options: JobOptions) -> None:
        """Refuse a unique key of all arguments, and a limit that counts by one, if it is not known yet."""
        if isinstance(options.unique, Unique) and options.unique.is_of_arguments:
            why = f"is a key of all arguments, and {self.marker.meaning} is not known yet; give another unique="
            raise InvalidInput("unique", kind, why)
        if (limit := options.limit) and limit.key in (*self.previous, *self.results):
            why = f"is the key of its limit, and {self.marker.meaning} is not known yet"
            raise InvalidInput(f"{kind}({limit.key})", self.marker, why)


def marks_of_call(signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Marks | None:
    """The markers among the arguments of a call; None: there are none."""
    if not is_marked((*args, *kwargs.values())):
        return None
    previous, results = (signature.places(args, kwargs, marker) for marker in (PREVIOUS, RESULTS))
    named = {name: unmarked(value) for name, value in kwargs.items()}
    return Marks(signature.encode(tuple(map(unmarked, args)), named), previous, results, signature)


def marks_of_payload(signature: Signature | None, payload: Any) -> Marks | None:
    """The markers in the payload of a job by name; None: there are none."""
    if isinstance(payload, Mapping) and is_marked(payload.values()):
        previous, results = (places(payload.items(), marker) for marker in (PREVIOUS, RESULTS))
        named = {name: unmarked(value) for name, value in payload.items()}
        return Marks(encode_payload(named), previous, results, signature)
    if isinstance(payload, list | tuple) and is_marked(payload):
        previous, results = (positions(payload, marker) for marker in (PREVIOUS, RESULTS))
        return Marks(encode_payload([unmarked(value) for value in payload]), previous, results, None)
    return None
