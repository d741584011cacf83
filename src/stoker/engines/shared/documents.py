"""Which stored operations are old, where no statement of the store can tell."""

from __future__ import annotations

import msgspec

from stoker.model.operations import Operation
from stoker.model.time import Instant


def old_operations(found: list[bytes], before: Instant) -> list[tuple[str, bytes]]:
    """Operations that no call has written since an instant: each one's id, and the document as it is stored."""
    read = [(msgspec.json.decode(raw, type=Operation), raw) for raw in found]
    return [(one.id, raw) for one, raw in read if one.seen < before]
