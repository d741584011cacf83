"""The versions of the other systems: one table, one environment for each line."""

from __future__ import annotations

from types import MappingProxyType

PYTHON = MappingProxyType(
    {
        "arq": ("arq==0.28.0", "hiredis==3.5.0", "uvloop==0.23.0"),
        "celery": ("celery==5.7.0", "redis==6.4.0", "hiredis==3.5.0", "packaging==26.3"),
        "dbos": ("dbos==3.4.0",),
        "dramatiq": ("dramatiq[redis]==2.2.1", "hiredis==3.5.0"),
        "huey": ("huey==3.5.4", "redis==8.1.0", "hiredis==3.5.0", "psycopg[binary]==3.3.8"),
        "pgqueuer": ("pgqueuer[asyncpg]==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
        "procrastinate": ("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.8"),
        "rq": ("rq==2.12.0", "hiredis==3.5.0"),
        "saq": ("saq[redis,postgres]==0.26.4", "psycopg[binary,pool]==3.3.8", "hiredis==3.5.0", "uvloop==0.23.0"),
        "taskiq": ("taskiq==0.13.0", "taskiq-redis==1.2.4", "hiredis==3.5.0", "uvloop==0.23.0"),
    }
)
"""Packages from PyPI, installed by pip."""

NODE = MappingProxyType(
    {
        "bullmq": ("node@22.23.3", "bullmq@6.7.0", "ioredis@6.0.0"),
        "graphile-worker": ("node@22.23.3", "graphile-worker@0.18.0"),
        "pg-boss": ("node@22.23.3", "pg-boss@12.35.0"),
    }
)
"""Packages from npm, installed by npm: Graphile Worker and pg-boss need Node 22."""
