from __future__ import annotations

import logging

import pytest

from stoker.engines import notices

log = logging.getLogger("stoker.engines.test")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_logged", set())
    monkeypatch.setattr(notices, "_kept", {})
    monkeypatch.setattr(notices, "_parent_logs", False)


@pytest.mark.spec("SQLITE-55")
def test_a_warning_is_logged_once_per_store_and_never_in_a_worker_process(caplog: pytest.LogCaptureFixture) -> None:
    for store in ("a", "a", "b"):
        notices.warn_once(log, store, "careful")
    assert [record.message for record in caplog.records] == ["careful", "careful"]
    notices.leave_to_parent()
    notices.warn_once(log, "c", "careful")
    assert len(caplog.records) == 2


@pytest.mark.spec("SQLITE-55")
def test_a_note_waits_for_a_worker_of_its_store(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for store in ("a", "a", "b"):
        notices.keep_for_workers(log, store, f"about {store}")
    assert not caplog.records
    for _ in range(2):
        notices.log_kept("a")
    assert [(record.message, record.levelname) for record in caplog.records] == [("about a", "INFO")]
    notices.leave_to_parent()
    notices.log_kept("b")
    assert len(caplog.records) == 1
