"""The dashboard and the REST API: pages and routes over `Admin`, as an ASGI app. Needs `stoker[web]`."""

from stoker.model.access import Identity
from stoker.web.auth import Key, Open, Tokens
from stoker.web.board import Dashboard, Limits, dashboard

__all__ = ["Dashboard", "Identity", "Key", "Limits", "Open", "Tokens", "dashboard"]
