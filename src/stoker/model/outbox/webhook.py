"""Webhooks: where a request may go, how it is signed and checked, and what its answer means.

Rules: a request leaves only to addresses that the whole internet can reach, so that a URL another person chose cannot
read what is behind our firewall; the caller may name networks that are allowed all the same. The signature is that of
Standard Webhooks: HMAC-SHA256 over id, timestamp and body, once per secret, so that secrets can be exchanged without a
gap. An answer either accepts the message, asks for a later try, or refuses it for good.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from stoker.model.errors import InvalidInput, InvalidOption, StokerError
from stoker.model.time import DAY, MINUTE, SECOND, Instant, Span, moment
from stoker.model.unique import LONGEST_KEY

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"

VERSION: Final = "v1,"
PREFIX: Final = "whsec_"
TOLERANCE: Final[Span] = 5 * MINUTE
"""How far the timestamp of a request may be from the receiver's clock."""
LONGEST_PAUSE: Final[Span] = DAY
_KEY_BYTES: Final = range(24, 65)
_TRANSLATED: Final = ip_network("64:ff9b::/96")
_NEVER: Final = tuple(map(ip_network, ("192.88.99.0/24", "3fff::/20", "5f00::/16", "64:ff9b:1::/48", "fec0::/10")))
"""Relays of 6to4, examples, segments, local translation and sites: not public, although Python may call them so."""

LONGEST_HEADER: Final = {ID: LONGEST_KEY, TIMESTAMP: 12, SIGNATURE: 2_000}
"""Characters of each header of a request; an id is one that an inbox can keep."""
LARGEST_BODY: Final = 16 << 20
HIDDEN: Final = "a text that is not shown"
"""Stands for a URL whose scheme and host cannot be told from the rest."""
_PORTS: Final = {"https": 443, "http": 80}


# --- where a request may go -----------------------------------------------------------------------------------------


class Endpoint(msgspec.Struct, frozen=True):
    """A URL that is checked, and the networks it may lead to although they are not public."""

    url: str
    host: str
    port: int
    encrypted: bool
    allow: tuple[Network, ...] = ()

    @property
    def authority(self) -> str:
        """Host and port as the request names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.encrypted else "http"] else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """Scheme and host, as errors and logs name it: the rest of the URL is often a secret."""
        return f"{'https' if self.encrypted else 'http'}://{self.authority}"

    def admits(self, address: str) -> bool:
        """May a request go to this address? Unencrypted only into a network that is allowed by name."""
        found = _plain(ip_address(address))
        if any(found in network for network in self.allow if network.version == found.version):
            return True
        return self.encrypted and is_public(found)

    def choose(self, addresses: Sequence[str]) -> str:
        """The address to connect to, of all that the host's name stands for; each of them must be allowed."""
        for one in addresses:
            if not self.admits(one):
                what = "an address of a private network" if self.encrypted else "reached without encryption"
                raise StokerError(
                    f"the webhook {self.shown} is not called: its host {self.host} is {one}, {what}. Messages wait. "
                    "Correct the URL or its DNS entry, or name the network: ToWebhook(..., allow=['10.1.0.0/16'])"
                )
        if not addresses:
            raise StokerError(f"the webhook {self.shown} is not called: its host {self.host} has no address")
        return addresses[0]


def endpoint(url: str, allow: Iterable[str] = ()) -> Endpoint:
    """Check a URL where it is written; raises `InvalidOption` for one that can never be called."""
    if not isinstance(url, str):
        raise InvalidOption("url", url, "must be text")
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise InvalidOption("url", HIDDEN, f"is no URL: {error}") from None
    shown = f"{parts.scheme}://{parts.hostname}" if parts.scheme in _PORTS and parts.hostname else HIDDEN
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InvalidOption("url", shown, "must begin with https:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise InvalidOption("url", shown, "must not contain a user or a password")
    if parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidOption("url", shown, "must be printable ASCII without spaces and without #")
    networks = tuple(_network(one) for one in allow)
    made = Endpoint(url, parts.hostname, port, parts.scheme == "https", networks)
    if not made.encrypted and not networks:
        raise InvalidOption("url", shown, "must begin with https://; http:// needs allow=, the networks it may lead to")
    try:
        literal = ip_address(parts.hostname)
    except ValueError:
        return made
    if not made.admits(str(literal)):
        raise InvalidOption(
            "url", shown, "is an address of a private network; name the network with allow= if you mean it"
        )
    return made


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise InvalidOption("allow", text, f"must be a network such as 10.1.0.0/16: {error}") from None


def is_public(address: Address) -> bool:
    """Can the whole internet reach it? An address that stands for another one is judged by that one."""
    found = _plain(address)
    if found.is_multicast or found.is_reserved or found.is_unspecified or any(found in one for one in _NEVER):
        return False
    return found.is_global


def _plain(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one where routers would unpack it, else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


# --- the signature --------------------------------------------------------------------------------------------------


def secret(text: str) -> bytes:
    """The key of a secret such as `whsec_…`; raises `InvalidOption` that does not show it."""
    body = text.removeprefix(PREFIX) if isinstance(text, str) else ""
    try:
        key = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) not in _KEY_BYTES:
        why = f"must be {PREFIX!r} and 24 to 64 random bytes in base64"
        raise InvalidOption("secret", "(not shown)", why)
    return key


def secrets(texts: str | Sequence[str]) -> tuple[bytes, ...]:
    """One secret, or two while the receiver exchanges the old one for the new one."""
    given = [texts] if isinstance(texts, str) else list(texts)
    if len(given) not in (1, 2):
        raise InvalidOption("secrets", f"{len(given)} secrets", "must be one, or two while one is being replaced")
    return tuple(secret(one) for one in given)


def sign(keys: Iterable[bytes], message: str, timestamp: int, body: bytes) -> str:
    """The header of a request: a signature for each key."""
    signed = b"%s.%d.%s" % (message.encode(), timestamp, body)
    return " ".join(VERSION + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys)


def verify(headers: Mapping[str, str], body: bytes, texts: str | Sequence[str], now: Instant) -> str:
    """The id of a request that was signed with one of the secrets, and lately; raises `InvalidInput` otherwise."""
    keys = secrets(texts)
    if not isinstance(body, bytes | bytearray | memoryview) or len(body) > LARGEST_BODY:
        raise InvalidInput("body", type(body).__name__, f"must be bytes as received, at most {LARGEST_BODY:,}")
    given = {name.lower(): value for name, value in headers.items() if name.lower() in LONGEST_HEADER}
    message, stamp, signatures = (_header(given, name) for name in LONGEST_HEADER)
    if not stamp.isdigit():
        raise InvalidInput(TIMESTAMP, stamp, "must be seconds since 1970, in digits")
    if abs(int(stamp) * SECOND - now) > TOLERANCE:
        raise InvalidInput(
            TIMESTAMP, stamp, "is more than five minutes away from now: a replayed request, or a wrong clock"
        )
    expected = sign(keys, message, int(stamp), body).split(" ")
    matches = [hmac.compare_digest(one.encode(), right.encode()) for one in signatures.split(" ") for right in expected]
    if not any(matches):
        raise InvalidInput(SIGNATURE, signatures, "was not made with this secret, or the body was changed on the way")
    return message


def _header(given: Mapping[str, str], name: str) -> str:
    value, most = given.get(name, ""), LONGEST_HEADER[name]
    if not isinstance(value, str) or not 0 < len(value) <= most or not (value.isascii() and value.isprintable()):
        needed = f"a webhook has {', '.join(LONGEST_HEADER)}"
        raise InvalidInput(name, value, f"must be a header of 1 to {most:,} printable ASCII characters; {needed}")
    return value


# --- the answer -----------------------------------------------------------------------------------------------------

Answer: TypeAlias = Literal["accepted", "later", "never"]


def answer(status: int) -> Answer:
    """What a status means. A redirect is not followed: an operator has to correct the URL, so messages wait."""
    if 200 <= status < 300:
        return "accepted"
    if 400 <= status < 500 and status not in (408, 429):
        return "never"
    return "later"


def pause(retry_after: str | None, now: Instant) -> Span | None:
    """How long the receiver asks to be left alone, at most a day; None if it does not say."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return min(int(text[:10]) * SECOND, LONGEST_PAUSE)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return min(max(int((at - moment(now)).total_seconds() * SECOND), 0), LONGEST_PAUSE)
