from __future__ import annotations

from pathlib import Path

import pytest

from scripts import release


def test_a_tag_is_refused_while_fragments_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "+orders.added.md").write_text("Orders.\n", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n', encoding="utf-8")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"lacks 1 of changelog\.d, \+orders\.added\.md first; nothing was built"):
        release.main(["--tag", "v0.2.0"])
    with pytest.raises(SystemExit, match=r"the tag v0\.3\.0 is not v0\.2\.0"):
        release.main(["--tag", "v0.3.0"])
