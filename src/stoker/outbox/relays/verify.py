"""Check webhooks that others send to you."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from stoker.model.outbox import webhook as rules
from stoker.model.time import SECOND


def verify_webhook(headers: Mapping[str, str], body: bytes, secrets: str | Sequence[str]) -> str:
    """Check a request of a Standard Webhook, and return its id, for `inbox.receive`.

    Raises `InvalidInput` unless the body was signed with one of the secrets less than five minutes ago. A request that
    is sent again passes: the inbox recognises its id.
    """
    return rules.verify(headers, body, secrets, int(time.time() * SECOND))
