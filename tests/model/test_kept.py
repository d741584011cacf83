"""Values beside the jobs: what of a row is compared and rewritten."""

from __future__ import annotations

from stoker.model.kept import Kept


def test_the_values_of_a_row_are_what_is_rewritten() -> None:
    kept = Kept("place", of="mail", consumer="audit", id=b"1", body=b"{}", headers="{}", error="why")
    assert kept.values == (b"{}", "{}", "why")
    assert kept._replace(error=None).values == (b"{}", "{}", None)
