"""Fixtures of apps on each engine."""

from tests.harness.apps import clock, engine, jobs, timed_jobs

__all__ = ["clock", "engine", "jobs", "timed_jobs"]
