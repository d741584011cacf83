"""Keeps several worker processes alive: `Supervisor("app:jobs", 4).run()`."""

from stoker.supervisor.supervisor import Supervisor

__all__ = ["Supervisor"]
