from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import house_check
from stoker import engines
from stoker.engines.sql.statements import Statements, statement


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "engine"
    for part in (folder, folder / "deeper", folder / "migrations"):
        part.mkdir()
    (folder / "claim.sql").write_text(
        "-- What a claim asks.\n\n-- name: take\n-- Takes what is due.\n-- Second line.\n\n"
        "SELECT 1 -- inside\nFROM t;\n\n"
        "-- name: drop\nDELETE FROM t\n"
    )
    (folder / "deeper" / "notify.sql").write_text("-- name: now\n/* why\n it is */ SELECT ';--'")
    (folder / "migrations" / "0001_schema.sql").write_text("CREATE TABLE t (a)")
    (folder / "notes.txt").write_text("not a statement")
    return folder


@pytest.mark.spec("SQLITE-62")
def test_statements_by_name(folder: Path) -> None:
    assert Statements(folder) == {
        "take": "SELECT 1 -- inside\nFROM t",
        "drop": "DELETE FROM t",
        "now": "SELECT ';--'",
    }


@pytest.mark.spec("SQLITE-62")
def test_a_missing_one_is_named_beside_those_there_are(folder: Path) -> None:
    with pytest.raises(KeyError, match=f"'settle' in {re.escape(str(folder))} .*drop, now, take"):
        Statements(folder)["settle"]


@pytest.mark.spec("SQLITE-62")
@pytest.mark.parametrize("file", ["claim.sql", "settle.sql"])
def test_a_name_that_is_there_twice_is_refused(folder: Path, file: str) -> None:
    with (folder / file).open("a") as stream:
        stream.write("-- name: drop\nDELETE FROM u\n")
    with pytest.raises(ValueError, match="'drop'"):
        Statements(folder)


@pytest.mark.parametrize(
    "text", ["-- name: void\n-- nothing but words\n", "SELECT 1\n-- name: void\nSELECT 2\n", "SELECT 1\n"]
)
def test_a_text_without_a_name_and_a_name_without_a_text_are_mistakes(folder: Path, text: str) -> None:
    (folder / "empty.sql").write_text(text)
    with pytest.raises(ValueError, match=r"empty\.sql"):
        Statements(folder)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("SELECT 1", "SELECT 1"),
        ("  \n-- a\n/* b */ -- c\nSELECT 1 ; \n", "SELECT 1"),
        ("-- only", ""),
        ("", ""),
        ("/* a */\nSELECT '-- b'", "SELECT '-- b'"),
    ],
)
def test_the_header_is_left_out(text: str, expected: str) -> None:
    assert statement(text) == expected


@pytest.mark.spec("SQLITE-03")
def test_every_statement_is_used() -> None:
    """One that no module looks up never runs."""
    [folder] = engines.__path__
    found = [file for file in Path(folder).rglob("*") if file.suffix in {".py", ".sql"}]
    texts = {file.relative_to(folder).as_posix(): file.read_text(encoding="utf-8") for file in found}
    assert sum(name.endswith(".sql") for name in texts) > 20
    assert house_check.statements(texts) == []
