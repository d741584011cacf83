"""A view as JSON has it: what `Admin` returns is the body of the REST API and the output of `--json`.

Moments are ISO 8601 texts and durations numbers of seconds, as callers write both.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec


def plain(view: Any) -> Any:
    """A view as objects, lists, texts and numbers."""
    return _in_seconds(msgspec.to_builtins(view, builtin_types=(timedelta,), str_keys=True, order="deterministic"))


def _in_seconds(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, dict):
        return {name: _in_seconds(one) for name, one in value.items()}
    return [_in_seconds(one) for one in value] if isinstance(value, (list, tuple)) else value


def in_schema(schema: Any) -> Any:
    """A JSON schema that msgspec makes of a view, with durations as `plain` has them."""
    if isinstance(schema, list):
        return [in_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "duration":
        return {**schema, "type": "number", "format": "seconds"}
    return {name: in_schema(one) for name, one in schema.items()}
