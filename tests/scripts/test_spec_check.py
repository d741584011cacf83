from __future__ import annotations

import pytest

from scripts import spec_check

SPEC = "- **CLAIM-01** first\n- **CLAIM-02** second\n\n```\n**FENCED-01**\n```\n"


def test_ids_are_read_from_bold_words_outside_fences() -> None:
    assert spec_check.defined(SPEC) == ["CLAIM-01", "CLAIM-02"]


@pytest.mark.parametrize(
    "source",
    [
        '@pytest.mark.spec("CLAIM-01", "CLAIM-02")',
        "@pytest.mark.spec(\n    'CLAIM-01',\n    'CLAIM-02',\n)",
        '"""Something. spec: CLAIM-01, CLAIM-02"""',
        "# spec: CLAIM-01\n# spec: CLAIM-02",
        "CLAIM-01 holds, and CLAIM-02 with it",
    ],
)
def test_every_way_to_cite_counts(source: str) -> None:
    assert spec_check.check(SPEC, [("t.py", source)]) == []


def test_an_id_without_a_test_fails() -> None:
    assert spec_check.check(SPEC, [("t.py", "spec: CLAIM-01")]) == ["tests/spec.md: CLAIM-02 is not cited by any test"]


@pytest.mark.parametrize("unknown", ["CLAIM-09", 'spec("OTHER-01")', "spec: OTHER-01"])
def test_a_cited_id_that_does_not_exist_fails(unknown: str) -> None:
    [complaint] = spec_check.check(SPEC, [("t.py", f"CLAIM-01 CLAIM-02 {unknown}")])
    assert complaint.startswith("t.py: cites ")


def test_an_id_defined_twice_fails() -> None:
    assert spec_check.check("**A-1** **A-1**", [("t.py", "A-1")]) == ["tests/spec.md: A-1 is defined 2 times"]


def test_words_of_the_same_shape_are_left_alone() -> None:
    assert spec_check.check("", [("t.py", "UTF-8, SHA-256 and X-CLAIM-01 are no citations")]) == []
