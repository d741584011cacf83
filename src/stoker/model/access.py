"""Who may do what through the dashboard and the REST API.

A role includes those below it: `read` looks, `operate` changes jobs, queues and schedules, `admin` also reveals what is
hidden. An identity that is limited to some queues changes nothing elsewhere.
"""

from __future__ import annotations

import ipaddress
from typing import Final, Literal, TypeAlias

import msgspec

from stoker.model.errors import Forbidden, InvalidInput
from stoker.model.filter import Filter
from stoker.model.redact import Redaction

Role: TypeAlias = Literal["read", "operate", "admin"]

ROLES: Final[tuple[Role, ...]] = ("read", "operate", "admin")
"""From the least to the most."""

LONGEST_NAME = 200


def is_loopback(address: str) -> bool:
    """Is this an address that only the own machine reaches?"""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


def includes(role: Role, other: Role) -> bool:
    """Does a role include this one?"""
    return ROLES.index(role) >= ROLES.index(other)


def searching(role: Role, queues: frozenset[str]) -> Role:
    """The role that bounds searches: what is masked is hidden from those who are limited to queues."""
    return "operate" if queues and role == "admin" else role


def check_search(role: Role, filter_: Filter) -> None:
    """Refuse a question into payloads to those who may not see any."""
    if filter_.payload is not None and not includes(role, "operate"):
        raise Forbidden("payload:", "operate", role)


def check_search_to_change(role: Role, filter_: Filter) -> None:
    """Refuse a change by texts to those who find them masked: what changes would tell what is hidden."""
    if filter_.has_texts and not includes(role, "admin"):
        raise Forbidden("acting on all jobs that payload:, error: or a text finds", "admin", role)


def check_masked_search(role: Role, filter_: Filter, mask: Redaction) -> None:
    """Refuse to look for metadata that the asker sees masked: what is found would tell what is hidden."""
    entry = None if filter_.entry is None else dict([filter_.entry])
    if entry is not None and mask.values(entry) != entry and not includes(role, "admin"):
        raise Forbidden(f"meta:{next(iter(entry))}, whose value is masked,", "admin", role)


class Identity(msgspec.Struct, frozen=True):
    """Who asks: a name for the audit log, a role, and the queues it is limited to (none: no limit)."""

    name: str
    role: Role = "read"
    queues: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= LONGEST_NAME:
            raise InvalidInput("name", self.name, f"must be a text of 1 to {LONGEST_NAME} characters")
        if self.role not in ROLES:
            raise InvalidInput("role", self.role, f"must be one of {', '.join(ROLES)}")
        msgspec.structs.force_setattr(self, "queues", frozenset(self.queues))

    def may(self, role: Role) -> bool:
        """Does the identity's role include this one?"""
        return includes(self.role, role)

    def reaches(self, queue: str) -> bool:
        """May it change what is in this queue?"""
        return not self.queues or queue in self.queues

    @property
    def reaches_all(self) -> bool:
        """May it change what belongs to no single queue?"""
        return not self.queues
