"""The smallest thing that is true today: the rules can be asked without any store, clock or network."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from stoker.model.errors import InvalidInput
from stoker.model.time import instant, rfc3339, span

if __name__ == "__main__":
    due = instant(datetime(2030, 1, 1, 9, tzinfo=UTC)) + span(timedelta(minutes=5))
    print("due at", rfc3339(due))
    try:
        span(-1, "delay")
    except InvalidInput as refusal:
        print("refused:", refusal)
