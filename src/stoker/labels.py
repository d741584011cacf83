"""Labels as tasks declare them: the text that one call of a task writes on its job."""

from __future__ import annotations

import msgspec

from stoker.codec.signature import Signature
from stoker.model.label import Label


class LabelOf:
    """The label of one task: checked against its parameters, and made anew for each call."""

    __slots__ = ("_label", "_signature")

    def __init__(self, template: str, kind: str, signature: Signature | None) -> None:
        self._label, self._signature = Label(template), signature
        parameters = [] if signature is None else [*signature.parameters.parameters.values()]
        if signature is not None and all(p.kind is not p.VAR_KEYWORD for p in parameters):
            self._label.check(kind, [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL])

    def __call__(self, payload: bytes) -> str:
        """The label of a job with this payload."""
        if self._signature is not None:
            signature = self._signature
            return self._label.text(lambda name: signature.argument(payload, name))
        given = msgspec.json.decode(payload)
        return self._label.text((given if isinstance(given, dict) else {}).__getitem__)
