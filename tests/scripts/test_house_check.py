from __future__ import annotations

from pathlib import Path

import pytest

from scripts import house_check


@pytest.mark.parametrize("first", ["/", "see /", "a=/"])
@pytest.mark.parametrize("rest", ["work/main", "root/x", "home/anna/code", "Users/anna/code"])
def test_paths_of_one_machine_are_found(first: str, rest: str) -> None:
    assert len(house_check.addresses("a.md", f"fine\n{first}{rest}\n")) == 1


@pytest.mark.parametrize("words", [["--index", "-url x"], ["files.python", "hosted.org/x"]])
def test_package_indexes_are_found(words: list[str]) -> None:
    line = "".join(words)  # in two halves, or this very file would be found
    assert len(house_check.addresses("a.md", f"fine\n{line}\n")) == 1


@pytest.mark.parametrize(
    "line",
    [
        str(Path("src", "work", "main")),
        "sqlite:////absolute.db",
        "/usr/lib/postgresql",
        "stoker work app:jobs",
        "an index",
    ],
)
def test_ordinary_text_is_left_alone(line: str) -> None:
    assert house_check.addresses("a.md", line) == []


@pytest.mark.parametrize("source", ["class DLQ: ...", "def send_ack(): ...", "heartbeat = 1", "def f(actor_name): ..."])
def test_names_with_foreign_words_are_found(source: str) -> None:
    assert len(house_check.glossary("a.py", source)) == 1


@pytest.mark.parametrize("source", ["back = pack = 1", "factor = 2", "class Tracker: ...", "x.ack()"])
def test_other_names_are_left_alone(source: str) -> None:
    assert house_check.glossary("a.py", source) == []


def test_migrations_are_numbered_one_after_the_other() -> None:
    """Two branches may have added the same number: each was fine, and together no engine can be imported."""
    before = ["a/migrations/0001_jobs.sql", "a/migrations/0002_more.sql", "b/migrations/0001_jobs.sql", "b/c.sql"]
    assert house_check.migrations(before) == []
    [doubled] = house_check.migrations([*before, "a/migrations/0002_other.sql"])
    assert "a/migrations: " in doubled
    assert doubled.endswith("1, 2, 2")
    assert len(house_check.migrations([*before, "b/migrations/0003_gap.sql"])) == 1


def test_statements_that_no_code_runs_are_found() -> None:
    """In the engine itself or in what the SQL engines share; a file without its module holds statements of nothing."""
    texts = {
        "lite/claim.py": 'TAKE = sql("take")\nOTHER = STATEMENTS["other"]\n',
        "lite/claim.sql": "-- name: take\nSELECT 1\n\n-- name: other\nSELECT 2\n\n-- name: shared\nSELECT 3\n",
        "lite/migrations/0001_schema.sql": "-- name: none\n",
        "sql/common.py": 'sql("shared")\n',
        "post/claim.py": 'sql("mine")\n',
    }
    assert house_check.statements(texts) == []
    [unused] = house_check.statements(texts | {"post/claim.sql": "-- name: take\nSELECT 1\n"})
    assert unused == "post/claim.sql: no code runs the statement 'take'"
    [alone] = house_check.statements(texts | {"post/lost.sql": "-- name: mine\nSELECT 1\n"})
    assert alone == "post/lost.sql: there is no module of this name beside it"


def test_a_folder_without_git_is_read_as_well(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("ack = 1\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "b.md").write_text("/" + "root/x")
    (tmp_path / "picture").write_bytes(b"\xff\xfe")
    assert len(house_check.check(tmp_path)) == 1
