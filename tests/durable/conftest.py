"""Fixtures of apps on each engine."""

from tests.harness.apps import clock, timed_jobs

__all__ = ["clock", "timed_jobs"]
