"""When two errors are the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.same_error import (
    error_line,
    fingerprint,
    fingerprint_of,
    is_fingerprint,
    normalized_error,
    own_frame,
    parts,
    signature,
)


@pytest.mark.spec("DERIVED-04")
@pytest.mark.parametrize(
    "error, same",
    [
        ("Timeout: after 31 s", "Timeout: after … s"),
        ("KeyError: 'user-7'\n  File …", "KeyError: …"),
        ('no "x" at 0xdeadBEEF', "no … at …"),
        ("no job 0193b0f0-0000-7000-8000-000000000001!", "no job …!"),
        ("commit 9fceb02d0ae598e95dc970b74767f19372d61af8 is bad", "commit … is bad"),
        ("the facade decade defaced", "the facade decade defaced"),
        ("it can't and won't", "it can't and won't"),
        ("`a b` failed", "… failed"),
        ("", ""),
        (None, ""),
    ],
)
def test_what_varies_in_an_error_is_left_out(error: str | None, same: str) -> None:
    assert normalized_error(error) == same
    assert len(error_line("x" * 1_000)) == 500


def traced(*frames: tuple[str, int, str], line: str = "KeyError: 'sku'", more: str = "") -> str:
    listed = "".join(f'\n  File "{path}", line {n}, in {name}\n    source = {n}' for path, n, name in frames)
    return f"{line}\nTraceback (most recent call last):{listed}{more}"


@pytest.mark.spec("DERIVED-10")
@pytest.mark.parametrize(
    ("error", "frame"),
    [
        (traced(("/srv/shop/tasks.py", 3, "charge"), ("/srv/shop/card.py", 9, "Card.pay")), "shop/card.py in Card.pay"),
        (
            traced(("/srv/shop/tasks.py", 3, "charge"), ("/v/lib/python3.12/site-packages/x/api.py", 9, "post")),
            "shop/tasks.py in charge",
        ),
        (traced(("C:\\shop\\tasks.py", 3, "charge")), "shop/tasks.py in charge"),
        (traced(("C:\\venv\\Lib\\site-packages\\x\\api.py", 9, "post")), ""),
        (traced(("/opt/deb/dist-packages/x/api.py", 9, "post")), ""),
        (traced(("tasks.py", 3, "charge")), "tasks.py in charge"),
        (traced(("/v/lib/python3.12/json/decoder.py", 3, "decode")), ""),
        (traced(more='\nCaused by OSError: x\nTraceback (most recent call last):\n  File "/a/b.py", line 1, in f'), ""),
        ('KeyError\nCaused by OSError: x\nTraceback (most recent call last):\n  File "/a/b.py", line 1, in f', ""),
        ('KeyError: a\n  File "/a/b.py", line 1, in f', ""),
        (traced(("/srv/shop/tasks.py", 3, "charge"), more="\n  … 4 frames left out"), "shop/tasks.py in charge"),
        ("the worker died", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_the_users_own_frame_is_the_innermost_one_of_the_error_itself(error: str | None, frame: str) -> None:
    assert own_frame(error) == frame


@pytest.mark.spec("DERIVED-10")
def test_a_fingerprint_outlives_ids_lines_and_folders_but_not_another_place() -> None:
    first = traced(("/srv/releases/41/shop/tasks.py", 3, "charge"), line="Timeout: order 17")
    later = traced(("/srv/releases/42/shop/tasks.py", 8, "charge"), line="Timeout: order 18")
    assert fingerprint_of(first) == fingerprint_of(later)
    assert signature(first) == "Timeout: order …\nshop/tasks.py in charge"
    assert parts(signature(first)) == ("Timeout: order …", "shop/tasks.py in charge")
    assert parts(signature("boom")) == ("boom", "")
    others = [
        traced(("/srv/shop/tasks.py", 3, "refund"), line="Timeout: order 17"),
        traced(("/srv/shop/tasks.py", 3, "charge"), line="Refused: order 17"),
        "Timeout: order 17",
    ]
    assert len({fingerprint_of(one) for one in (first, *others)}) == 4
    assert len(signature("x" * 1_000)) == 200


@pytest.mark.spec("DERIVED-10")
@given(st.text())
def test_a_fingerprint_is_a_name_and_no_id_of_a_job(error: str) -> None:
    name = fingerprint_of(error)
    assert name == fingerprint(signature(error))
    assert is_fingerprint(name)
    assert not is_fingerprint(name + "0")
    assert not is_fingerprint("0193b0f0-0000-7000-8000-000000000001")
