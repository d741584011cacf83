from __future__ import annotations

from pathlib import Path

from scripts import shop


def test_what_a_killed_shop_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("shop.db", "shop.db-wal", "shop.db-shm", "shop.db.backup"):
        (tmp_path / name).touch()
    (tmp_path / "shop.db-stoker" / "live").mkdir(parents=True)
    shop.remove(tmp_path / "shop.db")
    assert [one.name for one in tmp_path.iterdir()] == ["shop.db.backup"]
    shop.remove(tmp_path / "shop.db")
