from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stoker.engines.sql.statements import Statements, statement


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"made_{tmp_path.name}"
    folder = tmp_path / name / "sql"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "claim.sql").write_text("-- Takes what is due.\n-- Second line.\n\nSELECT 1 -- inside\nFROM t;\n")
    (folder / "now.sql").write_text("/* why\n it is */ SELECT ';--'")
    (folder / "notes.txt").write_text("not a statement")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


@pytest.mark.spec("SQLITE-62")
def test_statements_by_attribute_and_by_key(package: str) -> None:
    texts = Statements(package)
    assert texts.claim == texts["claim"] == "SELECT 1 -- inside\nFROM t"
    assert texts.now == "SELECT ';--'"
    assert list(texts) == ["claim", "now"]
    assert len(texts) == 2
    assert "claim" in texts
    assert "notes" not in texts


@pytest.mark.spec("SQLITE-62")
def test_a_missing_one_is_named_beside_those_there_are(package: str) -> None:
    texts = Statements(package)
    with pytest.raises(AttributeError, match=f"'settle' in {package}/sql.*claim, now"):
        _ = texts.settle
    with pytest.raises(KeyError, match="settle"):
        texts["settle"]
    with pytest.raises(AttributeError, match="none"):
        _ = Statements(package, "elsewhere").claim


def test_an_empty_file_is_a_mistake(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "sql" / "empty.sql").write_text("-- nothing but words\n")
    with pytest.raises(ValueError, match=r"empty\.sql"):
        Statements(package)


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
