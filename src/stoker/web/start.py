"""What a process that serves nothing but the dashboard does once, before its first page."""

from __future__ import annotations

import gc

from stoker.web import view


def prepare() -> None:
    """Compile the templates, and let full collections pass over all that is loaded.

    Else the first viewer of each page would wait for its template, and one in ten for a collection that takes as long
    as a page. Call it in a process of the dashboard's own: it concerns everything that is loaded there.
    """
    environment = view.environment()
    for name in environment.list_templates():
        environment.get_template(name)
    gc.collect()
    gc.freeze()
