"""Stoker in Django: `INSTALLED_APPS += ["stoker.contrib.django"]` and `STOKER = {"DATABASE": "default"}`.

`jobs` is the app that the settings describe, made when it is first asked for. Asking for it sets Django up if nothing
has done so yet, as in a worker process: no caller needs `django.setup()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.contrib.django.app import DjangoStoker
    from stoker.contrib.django.backend import StokerBackend as StokerBackend
    from stoker.contrib.django.streams import ajob_stream as ajob_stream
    from stoker.contrib.django.streams import job_stream as job_stream

    jobs: DjangoStoker

__all__ = ["StokerBackend", "ajob_stream", "job_stream", "jobs"]


if not TYPE_CHECKING:  # a checker would take it for a promise that every name exists

    def __getattr__(name: str) -> Any:
        """Make the app, or import the rest, on first use."""
        if name == "jobs":
            from stoker.contrib.django.app import the_app

            return the_app()
        if name == "StokerBackend":
            from stoker.contrib.django.backend import StokerBackend

            return StokerBackend
        if name in {"job_stream", "ajob_stream"}:
            from stoker.contrib.django import streams

            return getattr(streams, name)
        raise AttributeError(f"module 'stoker.contrib.django' has no attribute {name!r}")
