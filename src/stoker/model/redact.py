"""Redaction: secrets in payloads, results, metadata and texts are masked before a person sees them.

A value is masked when the name beside it looks like that of a secret: `password`, `accessToken`, `card_number`. Only
the bytes of masked values change; the rest of a payload stays byte for byte. Masking too much is cheap, because who may
see a secret can reveal it; masking too little is not.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Raw

from stoker.model.errors import InvalidInput
from stoker.model.job import Failure, Job
from stoker.model.seal import sized, sized_json

MASK = "[hidden]"

WORDS = frozenset(
    {
        *("pass", "pwd", "pw", "pin", "otp", "totp", "auth", "oauth", "jwt", "bearer", "mnemonic", "signature"),
        *("card", "cvv", "cvc", "ccv", "iban", "bic", "ssn", "dsn", "csrf", "xsrf", "sid", "sessionid"),
    }
)
"""Words of a name that make its value a secret."""

TEXT_WORDS = frozenset({"tokens", "session", "pan", "salt"})
"""Words of a name that make texts secrets; numbers, as in `max_tokens`, stay."""

ENDINGS = (
    *("password", "passwords", "passwd", "passphrase", "passcode", "kennwort", "passwort"),
    *("secret", "secrets", "token", "credential", "credentials", "authorization", "cookie", "cookies"),
    *("apikey", "apikeys"),
)
"""A word that ends like this does so too: `dbpassword`."""

PAIRS: dict[str, frozenset[str]] = {
    "key": frozenset(
        {
            *("api", "access", "private", "secret", "encryption", "signing", "ssh", "rsa", "aes", "hmac"),
            *("master", "stripe", "service", "license"),
        }
    ),
    "pem": frozenset({"private"}),
    "id": frozenset({"session", "tax"}),
    "url": frozenset({"database", "db", "webhook"}),
    "string": frozenset({"connection", "conn"}),
    "str": frozenset({"connection", "conn"}),
    "number": frozenset({"account", "routing", "security"}),
    "code": frozenset({"mfa", "recovery", "backup"}),
    "phrase": frozenset({"seed"}),
    "fa": frozenset({"2"}),
    "passe": frozenset({"de"}),
}
"""Behind one of these words, a word (or its plural) makes a secret: `api_key`, `recovery_codes`, `mot_de_passe`."""

FAULTS = ("Error", "Exception", "Warning")
FAULTY = frozenset({"Bad", "Expired", "Invalid", "Malformed", "Missing", "No", "Unknown", "Wrong"})
NOUNS = frozenset({"code", "data", "hash", "id", "key", "no", "number", "phrase", "pem", "string", "url", "value"})
"""How names of exception classes end and begin, and how those of values end."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)
# Both look at each word once: a traceback may have words of thousands of letters.
_NAME = re.compile(r"""(?<![\w-])["']?([\w-]+)["']?\s*[=:]\s*""")
_VALUE = re.compile(r"""(?i)"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?:bearer|basic)\s+\S+|[^\s,;&(){}\[\]]+""")
# What is in brackets: a quote that is not closed goes on to the end of the line, so that nothing is looked at twice.
_INSIDE = re.compile(r"""[(\[{]|[)\]}]|\n|"(?:[^"\\\n]|\\.)*+"?|'(?:[^'\\\n]|\\.)*+'?|[^()\[\]{}"'\n]+""")
_NUMBER = re.compile(r"(?i)[+-]?\d{1,9}(?:\.\d{1,9})?|true|false")
_SENTENCE = re.compile(r"[^\S\n]*\S+[^\S\n]+\S")
_ADDRESS = re.compile(r"(?i)(\b[a-z][a-z0-9+.-]{0,40}://[^\s/:@]*:)[^\s/]+(@)")


class Secrecy(enum.Enum):
    """What of the value under a name is masked."""

    NONE = enum.auto()
    TEXT = enum.auto()
    ALL = enum.auto()


@lru_cache(maxsize=4_096)
def secrecy(name: str, also: frozenset[str] = frozenset()) -> Secrecy:
    """What is masked under this name. `also` holds further words, in small letters."""
    words = [word.lower() for word in _WORD.findall(name)]
    if any(word in WORDS or word in also or word.endswith(ENDINGS) for word in words):
        return Secrecy.ALL
    if any(before in PAIRS.get(word.removesuffix("s"), ()) for before, word in pairwise(words)):
        return Secrecy.ALL
    return Secrecy.TEXT if any(word in TEXT_WORDS for word in words) else Secrecy.NONE


@lru_cache(maxsize=4_096)
def _secrecy_of(quoted: str, also: frozenset[str]) -> Secrecy:
    """The same of a name as JSON writes it: reading it anew for each value took half of the time."""
    return secrecy(json.loads(quoted), also)


def is_secret(name: str, also: frozenset[str] = frozenset()) -> bool:
    """Whether a text under this name is masked."""
    return secrecy(name, also) is not Secrecy.NONE


def _hides(name: str, value: str, also: frozenset[str]) -> bool:
    """Whether a text is masked under a name. A short number stays where numbers do; a long one may be a card's."""
    found = secrecy(name, also)
    return found is Secrecy.ALL or (found is Secrecy.TEXT and _NUMBER.fullmatch(value) is None)


def _addresses(quoted: str) -> str:
    """A JSON text without the passwords of addresses in it; any other stays as it was written."""
    if "@" not in quoted and "\\" not in quoted:
        return quoted
    plain = json.loads(quoted)
    masked = _ADDRESS.sub(rf"\1{MASK}\2", plain)
    return quoted if masked == plain else json.dumps(masked)


def _value_end(text: str, start: int) -> int:
    """Where the value ends that begins here: with what it has in brackets, `SecretStr('x')`; here: there is none."""
    plain = _VALUE.match(text, start)
    end = start if plain is None else plain.end()
    if not text.startswith(("(", "[", "{"), end):
        return end
    depth = 0
    for part in _INSIDE.finditer(text, end):
        if part[0] == "\n":
            return part.start()
        depth += (part[0] in "([{") - (part[0] in ")]}")
        if not depth:
            return part.end()
    return len(text)


def _is_class(name: str, rest: str, start: int) -> bool:
    """Whether `name:` begins an exception, as in `CardDeclined: card ending 0726`, and is no name of a value."""
    words = _WORD.findall(name)
    if len(words) < 2 or not name.isalnum() or not name[0].isupper():
        return False
    if words[-1] in FAULTS:
        return True
    last = words[-1].lower()
    names_value = last.removesuffix("s") in NOUNS or is_secret(last)
    return (not names_value or words[0] in FAULTY) and _SENTENCE.match(rest, start) is not None


class Redaction(msgspec.Struct, frozen=True):
    """Masks values by the names beside them. `also` holds further words that make a name secret."""

    also: frozenset[str] = frozenset()

    def json(self, raw: bytes) -> bytes:
        """JSON with the values under secret names masked, at any depth; what is no JSON is masked as a text.

        What is sealed is shown as its size.
        """
        text = sized_json(raw).decode(errors="surrogateescape")
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return self.text(text).encode(errors="surrogateescape")
        pieces: list[str] = []
        behind = 0
        for start, end, shown in self._masked(text):
            pieces += (text[behind:start], shown)
            behind = end
        return "".join([*pieces, text[behind:]]).encode(errors="surrogateescape")

    def _masked(self, text: str) -> Iterator[tuple[int, int, str]]:
        """The masked parts of a JSON text, from left to right: position and replacement."""
        inside: list[str] = []  # the brackets around a token
        last = name = ""
        hidden: tuple[int, int] | None = None  # where a masked object or list began, and how deep it is
        texts: int | None = None  # how deep an object or list is in which texts are masked
        for token in _TOKEN.finditer(text):
            what = token[0]
            if what in "{[":
                found = _secrecy_of(name, self.also) if name and hidden is None else Secrecy.NONE
                if found is Secrecy.ALL:
                    hidden = token.start(), len(inside)
                elif found is Secrecy.TEXT and texts is None:
                    texts = len(inside)
                inside.append(what)
                name = ""
            elif what in "}]":
                inside.pop()
                name = ""
                if hidden is not None and hidden[1] == len(inside):
                    yield hidden[0], token.end(), f'"{MASK}"'
                    hidden = None
                elif texts == len(inside):
                    texts = None
            elif what == ":":
                name = last
            elif what == ",":
                name = ""
            elif not name and inside and inside[-1] == "{":
                last = what
                if hidden is None and (shown := _addresses(what)) != what:
                    yield token.start(), token.end(), shown
            else:
                if hidden is None and (shown := self._value(name, what, texts=texts is not None)) != what:
                    yield token.start(), token.end(), shown
                name = ""

    def _value(self, name: str, what: str, *, texts: bool) -> str:
        """A JSON text, number or word as it is shown; `texts`: around it texts are masked."""
        found = _secrecy_of(name, self.also) if name else Secrecy.NONE
        is_text = what[0] == '"'
        if what != "null" and (found is Secrecy.ALL or (is_text and (texts or found is Secrecy.TEXT))):
            return f'"{MASK}"'
        return _addresses(what) if is_text else what

    def values(self, named: Mapping[str, str]) -> dict[str, str]:
        """A map from names to texts, with the secret ones masked."""
        return {
            name: MASK if value and _hides(name, value, self.also) else self.text(value)
            for name, value in named.items()
        }

    def text(self, text: str) -> str:
        """A text with `password=…`, `Authorization: …` and passwords in addresses masked, sealed values as sizes."""
        text = sized(text)
        pieces: list[str] = []
        at = behind = 0
        while (name := _NAME.search(text, at)) is not None:
            at = name.end()
            if not is_secret(name[1], self.also):
                continue
            if name[0].rstrip().endswith(f"{name[1]}:") and _is_class(name[1], text, at):
                continue
            end = _value_end(text, at)
            if end > at and _hides(name[1], text[at:end].strip("\"'"), self.also):
                pieces += (text[behind:at], MASK)
                at = behind = end
        return _ADDRESS.sub(rf"\1{MASK}\2", "".join([*pieces, text[behind:]]))

    def job(self, job: Job) -> Job:
        """A job with every part masked that can hold a secret; options keep the metadata that came with it masked."""
        options = job.options
        if options.metadata:
            options = msgspec.structs.replace(options, metadata=self.values(options.metadata))
        if options.label:
            options = msgspec.structs.replace(options, label=self.text(options.label))
        return msgspec.structs.replace(
            job,
            payload=self.json(job.payload),
            result=None if job.result is None else self.json(job.result),
            options=options,
            metadata=self.values(job.metadata),
            last_error=None if job.last_error is None else self.text(job.last_error),
            history=tuple(Failure(one.at, one.attempt, self.text(one.error), one.origin) for one in job.history),
            log=tuple(map(self.text, job.log)),
        )

    def listed(self, job: Job) -> Job:
        """A job as a row of a list has it: without what no row shows and what takes long to mask."""
        return self.job(msgspec.structs.replace(job, payload=b"", result=None, history=(), log=()))


class Nothing(Redaction, frozen=True):
    """Masks nothing, for people who may see secrets."""

    def json(self, raw: bytes) -> bytes:
        """The bytes as they are; what is sealed as its size."""
        return sized_json(raw)

    def values(self, named: Mapping[str, str]) -> dict[str, str]:
        """The map as it is; what is sealed as its size."""
        return {name: sized(value) for name, value in named.items()}

    def text(self, text: str) -> str:
        """The text as it is; what is sealed as its size."""
        return sized(text)


EVERYTHING_SHOWN = Nothing()


# --- what comes back from people --------------------------------------------------------------------------------------


def with_secrets(stored: bytes, given: bytes, redact: Redaction, *, may_change: bool) -> bytes:
    """A payload that a person edited, with the values which were masked for them as they are stored. It is JSON.

    A masked value that comes back as it was shown is kept. One that was changed or left out raises `InvalidInput` with
    its name, unless its editor `may_change` what is hidden: a right guess is refused like a wrong one. Values that are
    not masked stay byte for byte as given.
    """
    try:
        json.loads(stored)
    except (ValueError, RecursionError):  # it was shown as a text, in which no value has a place
        return given
    shown = redact.json(stored)
    return given if shown == stored else _kept(Raw(stored), Raw(shown), Raw(given), "payload", may_change=may_change)


_object = msgspec.json.Decoder(dict[str, Raw]).decode
_list = msgspec.json.Decoder(list[Raw]).decode


def _value_of(raw: Raw) -> Any:
    return json.loads(bytes(raw))  # which reads numbers of any size


def _kept(stored: Raw, shown: Raw, given: Raw, path: str, *, may_change: bool) -> bytes:
    """One value as it is to be stored: `stored` before, `shown` to a person, `given` back by them."""
    if _value_of(stored) == _value_of(shown):
        return bytes(given)
    if _value_of(given) == _value_of(shown):
        return bytes(stored)
    first = {bytes(one).lstrip()[:1] for one in (stored, shown, given)}
    if first == {b"{"}:
        pairs = zip(_object(stored).items(), _object(shown).items(), strict=True)
        return _object_kept(dict(_named(pairs)), _object(given), path, may_change=may_change)
    if first == {b"["}:
        parts = list(zip(_list(stored), _list(shown), strict=True))
        return _list_kept(parts, _list(given), path, may_change=may_change)
    if may_change:
        return bytes(given)
    raise _hidden(path)


def _named(pairs: Iterable[tuple[tuple[str, Raw], tuple[str, Raw]]]) -> Iterator[tuple[str, tuple[str, Raw, Raw]]]:
    """Under each name as it is shown: the stored name, the stored value and the shown one."""
    for (name, stored), (shown_name, shown) in pairs:
        yield shown_name, (name, stored, shown)


def _object_kept(before: Mapping[str, tuple[str, Raw, Raw]], given: Mapping[str, Raw], path: str, **may: bool) -> bytes:
    parts: list[bytes] = []
    for shown_name, value in given.items():
        name, kept = shown_name, bytes(value)
        if shown_name in before:
            name, stored, shown = before[shown_name]
            kept = _kept(stored, shown, value, f"{path}.{shown_name}", **may)
        parts.append(json.dumps(name).encode() + b": " + kept)
    for shown_name, (_, stored, shown) in before.items():
        if shown_name not in given and _value_of(stored) != _value_of(shown) and not may["may_change"]:
            raise _hidden(f"{path}.{shown_name}")
    return b"{" + b", ".join(parts) + b"}"


def _list_kept(before: Sequence[tuple[Raw, Raw]], given: Sequence[Raw], path: str, **may: bool) -> bytes:
    parts = [bytes(value) for value in given]
    for place, (stored, shown) in enumerate(before):
        if place < len(given):
            parts[place] = _kept(stored, shown, given[place], f"{path}[{place}]", **may)
        elif _value_of(stored) != _value_of(shown) and not may["may_change"]:
            raise _hidden(f"{path}[{place}]")
    return b"[" + b", ".join(parts) + b"]"


def _hidden(path: str) -> InvalidInput:
    return InvalidInput(path, "another value", f"must come back as {MASK}; only the role admin changes what is hidden")
