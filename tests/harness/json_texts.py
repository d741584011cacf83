"""JSON of payloads: what every door takes unchanged, and what every door refuses."""

from __future__ import annotations

from typing import Final

TAKEN: Final = (
    "null",
    "[]",
    '{"a":  1.0, "b": [true, null, "é😀"]}',
    ' {"pair": "\\ud83d\\ude00", "text": "\\\\u0000 \\\\ud800"} ',
    '{"n": 1.7e308, "small": 1e-400, "zero": -0.0}',
    '{"n": ' + "9" * 4_300 + "}",
    '{"a": {"a": {"a": 1}}, "b": {"a": 2}}',
    "[" * 64 + "]" * 64,
    '{"text": "[[[[{{{{' + "[" * 100 + '"}',
)
REFUSED: Final = (
    "1",
    '"text"',
    "true",
    '{"nul": "\\u0000"}',
    '{"\\u0000": 1}',
    '["\\ud800"]',
    '["\\udc00\\ud800"]',
    '["\\ud83d\\\\ude00"]',
    '{"a": 1, "a": 2}',
    '[{"b": {"a": 1, "c": 2, "\\u0061": 3}}]',
    "[" * 65 + "]" * 65,
    '{"n": 1e999}',
    '{"n": -1.8e308}',
    '{"n": ' + "9" * 4_301 + "}",
)
NO_JSON: Final = ("", "[", "{'a': 1}", '{"n": NaN}', '{"n": Infinity}', '{"a": 1,}')
"""Where a store reads JSON by itself, it refuses these in its own words."""
