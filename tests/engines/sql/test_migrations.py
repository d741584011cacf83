from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engines.sql.migrations import Migration, advance, load, pending, split, sql_text, steps
from stoker.model.errors import SchemaMismatch

FIRST = Migration(1, "begin", "CREATE TABLE a (x);\nCREATE TABLE b (x);\n")
SECOND = Migration(2, "more", "ALTER TABLE a ADD COLUMN y;")
THIRD = Migration(3, "trigger", "CREATE TRIGGER t AFTER INSERT ON a BEGIN INSERT INTO b VALUES (new.x); END;")
ALL = (FIRST, SECOND, THIRD)
BREAKING = Migration(4, "drop", "-- breaking: stop workers of 0.1 (it's gone)\nDROP TABLE b;")


class Store:
    """A SQLite file upgraded as an engine does it: one exclusive transaction per migration."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None, timeout=10, check_same_thread=False)

    def execute(self, statement: str, parameters: Sequence[Any]) -> list[Any]:
        return self.connection.execute(statement, parameters).fetchall()

    def migrate(self, available: Sequence[Migration]) -> list[int]:
        done: list[int] = []
        while True:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                migration = advance(self.execute, available)
            except BaseException:
                self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")
            if migration is None:
                return done
            done.append(migration.number)

    def close(self) -> None:
        self.connection.close()

    def ledger(self) -> list[Any]:
        return self.execute("SELECT number, name, checksum FROM stoker_migration ORDER BY number", ())

    def tables(self) -> set[str]:
        return {row[0] for row in self.execute("SELECT name FROM sqlite_schema", ())}


class Mortal(Store):
    """Dies before its n-th statement."""

    def __init__(self, path: Path, lives: int) -> None:
        super().__init__(path)
        self.lives = lives

    def execute(self, statement: str, parameters: Sequence[Any]) -> list[Any]:
        self.lives -= 1
        if not self.lives:
            os._exit(9)
        return super().execute(statement, parameters)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "jobs.db")) as made:
        yield made


def ledger(*applied: Migration) -> list[tuple[int, str, str | None]]:
    return [(one.number, one.checksum, one.breaking) for one in applied]


@pytest.mark.spec("SQLITE-63")
def test_what_is_newer_than_the_schema_is_pending() -> None:
    assert pending([], ALL) == [FIRST, SECOND, THIRD]
    assert pending(ledger(FIRST, SECOND), ALL) == [THIRD]
    assert pending(ledger(*ALL), ALL) == []
    assert pending([], ()) == []


@pytest.mark.spec("SQLITE-63")
def test_a_schema_that_only_added_is_good_enough_and_a_breaking_one_is_refused_in_one_sentence() -> None:
    assert pending(ledger(*ALL), (FIRST,)) == []
    with pytest.raises(SchemaMismatch, match=r"version 4.*up to 3.*stop workers of 0\.1.*[Uu]pgrade this process"):
        pending(ledger(*ALL, BREAKING), ALL)


@pytest.mark.spec("SQLITE-63")
def test_a_breaking_migration_waits_for_the_word_that_older_code_has_stopped(store: Store) -> None:
    store.migrate(ALL)
    with pytest.raises(SchemaMismatch, match=r"0004_drop.*stop workers of 0\.1.*stoker migrate --stopped"):
        store.migrate((*ALL, BREAKING))
    assert [row[0] for row in store.ledger()] == [1, 2, 3]
    assert "-- breaking: stop workers of 0.1 (it's gone)\nBEGIN;" in sql_text([BREAKING])
    store.connection.execute("BEGIN IMMEDIATE")
    assert advance(store.execute, (*ALL, BREAKING), stopped=True) == BREAKING
    store.connection.execute("COMMIT")
    assert store.execute("SELECT breaking FROM stoker_migration WHERE number > 2", ()) == [
        (None,),
        ("stop workers of 0.1 (it's gone)",),
    ]


@pytest.mark.spec("SQLITE-64")
def test_a_migration_that_changed_after_it_was_applied_is_refused(store: Store) -> None:
    store.migrate(ALL)
    changed = Migration(2, "more", "ALTER TABLE a ADD COLUMN z;")
    with pytest.raises(SchemaMismatch, match=r"0002_more.*another text"):
        store.migrate((FIRST, changed, THIRD))
    windows = Migration(1, "begin", FIRST.text.replace("\n", "\r\n"))
    assert store.migrate((windows, SECOND, THIRD)) == []


@pytest.mark.spec("SQLITE-64")
def test_a_hole_in_the_ledger_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="0001_begin is missing"):
        pending(ledger(SECOND), ALL)


@pytest.mark.spec("SQLITE-65")
def test_each_is_applied_once_with_its_number(store: Store) -> None:
    assert store.migrate(ALL[:2]) == [1, 2]
    assert store.migrate(ALL) == [3]
    assert store.migrate(ALL) == []
    assert store.ledger() == [(one.number, one.name, one.checksum) for one in ALL]
    store.execute("INSERT INTO a VALUES (1, 2)", ())
    assert store.execute("SELECT x FROM b", ()) == [(1,)]


@pytest.mark.spec("SQLITE-65")
def test_one_that_fails_leaves_nothing_and_is_resumed(store: Store) -> None:
    broken = Migration(2, "more", "CREATE TABLE c (x);\nCREATE TABLE a (x);")
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        store.migrate((FIRST, broken))
    assert [row[0] for row in store.ledger()] == [1]
    assert "c" not in store.tables()
    assert store.migrate(ALL) == [2, 3]


@pytest.mark.spec("SQLITE-65")
def test_one_killed_in_the_middle_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    for die_at in range(1, 9):
        if (pid := os.fork()) == 0:
            Mortal(path, die_at).migrate(ALL)
            os._exit(0)
        os.waitpid(pid, 0)
    with closing(Store(path)) as store:
        store.migrate(ALL)
        assert [row[0] for row in store.ledger()] == [1, 2, 3]
        assert {"a", "b", "t"} <= store.tables()


@pytest.mark.spec("SQLITE-65")
def test_several_at_once_apply_each_migration_once(tmp_path: Path) -> None:
    for number in range(10):
        path = tmp_path / f"jobs{number}.db"
        done: list[int] = []
        start = threading.Barrier(3)

        def upgrade(path: Path = path, done: list[int] = done, start: threading.Barrier = start) -> None:
            with closing(Store(path)) as store:
                start.wait()
                done.extend(store.migrate(ALL))

        threads = [threading.Thread(target=upgrade) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(done) == [1, 2, 3]


@pytest.mark.spec("SQLITE-66")
@pytest.mark.parametrize(
    "text, expected",
    [
        ("", []),
        (" ; ;\n-- only words;\n", []),
        ("SELECT 1; SELECT 2", ["SELECT 1", "SELECT 2"]),
        ('SELECT \';\'; SELECT ";"";"; SELECT `;`, [;]', ["SELECT ';'", 'SELECT ";"";"', "SELECT `;`, [;]"]),
        ("SELECT 'it''s; fine';SELECT 2;", ["SELECT 'it''s; fine'", "SELECT 2"]),
        ("-- a; b\nSELECT 1 /* ; */, 2 -- ;\n;", ["SELECT 1 /* ; */, 2 -- ;"]),
        (
            "CREATE TEMP TRIGGER t AFTER UPDATE ON a BEGIN SELECT CASE WHEN 1 THEN 2 END; SELECT 3; END; SELECT 4",
            [
                "CREATE TEMP TRIGGER t AFTER UPDATE ON a BEGIN SELECT CASE WHEN 1 THEN 2 END; SELECT 3; END",
                "SELECT 4",
            ],
        ),
        ("SELECT CASE WHEN 1 THEN 2 END; SELECT 3", ["SELECT CASE WHEN 1 THEN 2 END", "SELECT 3"]),
        (
            "CREATE FUNCTION f() RETURNS int AS $body$ BEGIN RETURN 1; END $body$ LANGUAGE plpgsql; SELECT $$;$$",
            ["CREATE FUNCTION f() RETURNS int AS $body$ BEGIN RETURN 1; END $body$ LANGUAGE plpgsql", "SELECT $$;$$"],
        ),
    ],
)
def test_a_script_is_split_where_statements_end(text: str, expected: list[str]) -> None:
    assert split(text) == expected


PIECES = st.sampled_from(["a", " ", "''", "';'", '";"', "/*;*/", "--;\n", "[;]", "\n", "1", "(", ")"])


@given(st.lists(st.lists(PIECES, min_size=1).map("".join), max_size=5))
def test_what_was_joined_is_split_again(statements: list[str]) -> None:
    parts = ["x" + part.strip() + "\n" for part in statements]
    assert split(";".join(parts)) == [part.strip() for part in parts]
    for part in parts:
        # The driver's own judge agrees about where the first one ends.
        assert sqlite3.complete_statement(part + ";")


@pytest.mark.spec("SQLITE-67")
def test_people_can_run_the_script_themselves(tmp_path: Path) -> None:
    assert sql_text([]) == "-- Nothing to do.\n"
    with closing(Store(tmp_path / "by-hand.db")) as store:
        store.connection.executescript(sql_text(ALL))
        assert store.migrate(ALL) == []
    assert steps(SECOND)[0] == "ALTER TABLE a ADD COLUMN y"


def made(folder: Path, **files: str) -> Path:
    for file, text in files.items():
        (folder / f"{file.removeprefix('m')}.sql").write_text(text)
    (folder / "README.md").touch()
    return folder


def test_files_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = made(tmp_path, m0002_b="SELECT 2", m0001_a="SELECT 1")
    assert [str(one) for one in load(folder)] == ["0001_a", "0002_b"]


@pytest.mark.parametrize(
    "files", [{"m0001_a": "", "m0003_c": ""}, {"m0001_a": "", "m0001_b": ""}, {"m1_a": ""}, {"m0000_a": ""}]
)
def test_files_out_of_order_are_a_mistake(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        load(made(tmp_path, **files))
