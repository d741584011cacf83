"""Redaction: secrets in payloads, results, metadata and texts are masked before a person sees them.

A value is masked when the name beside it looks like that of a secret: `password`, `accessToken`, `card_number`. Only
the bytes of masked values change; the rest of a payload stays byte for byte. Masking too much is cheap, because who may
see a secret can reveal it; masking too little is not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise

import msgspec

from stoker.model.job import Failure, Job

MASK = "[hidden]"

WORDS = frozenset(
    {"pass", "pwd", "pin", "cvv", "cvc", "ccv", "card", "iban", "ssn", "auth", "jwt", "bearer", "otp", "signature"}
)
"""Words of a name that make its value a secret."""

ENDINGS = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "secrets",
    "token",
    "credential",
    "credentials",
    "authorization",
    "cookie",
    "cookies",
    "apikey",
)
"""A word that ends like this does so too: `dbpassword`."""

KEYS = frozenset({"api", "access", "private", "secret", "encryption", "signing"})
"""In front of `key` these words make a secret: `api_key`."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)
# Both look at each word once: a traceback may have words of thousands of letters.
_NAME = re.compile(r"""(?<![\w-])["']?([\w-]+)["']?\s*[=:]\s*""")
_VALUE = re.compile(r"""(?i)"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?:bearer|basic)\s+\S+|[^\s,;&)}\]]+""")
_ADDRESS = re.compile(r"(?i)(\b[a-z][a-z0-9+.-]{0,40}://[^\s/:@]*:)[^\s/@]+(@)")


@lru_cache(maxsize=4_096)
def is_secret(name: str, also: frozenset[str] = frozenset()) -> bool:
    """Whether a value under this name is masked. `also` holds further words, in small letters."""
    words = [word.lower() for word in _WORD.findall(name)]
    if any(word in WORDS or word in also or word.endswith(ENDINGS) for word in words):
        return True
    return any(word in {"key", "keys"} and before in KEYS for before, word in pairwise(words))


class Redaction(msgspec.Struct, frozen=True):
    """Masks values by the names beside them. `also` holds further words that make a name secret."""

    also: frozenset[str] = frozenset()

    def json(self, raw: bytes) -> bytes:
        """JSON with the values under secret names masked, at any depth; what is no JSON is masked as a text."""
        text = raw.decode(errors="surrogateescape")
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return self.text(text).encode(errors="surrogateescape")
        pieces: list[str] = []
        behind = 0
        for start, end in self._spans(text):
            pieces += (text[behind:start], f'"{MASK}"')
            behind = end
        return "".join([*pieces, text[behind:]]).encode(errors="surrogateescape")

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where the masked values of a JSON text are, from left to right."""
        depth, last, name = 0, "", ""
        hidden: tuple[int, int] | None = None  # where a masked object or list began, and how deep it is
        for token in _TOKEN.finditer(text):
            what = token[0]
            if what in "{[":
                if hidden is None and name and self._masks(name):
                    hidden = token.start(), depth
                depth, name = depth + 1, ""
            elif what in "}]":
                depth, name = depth - 1, ""
                if hidden is not None and hidden[1] == depth:
                    yield hidden[0], token.end()
                    hidden = None
            elif what == ":":
                name = last
            elif what == ",":
                name = ""
            elif name:
                if hidden is None and what != "null" and self._masks(name):
                    yield token.span()
                name = ""
            else:
                last = what

    def _masks(self, quoted: str) -> bool:
        return is_secret(json.loads(quoted), self.also)

    def values(self, named: Mapping[str, str]) -> dict[str, str]:
        """A map from names to texts, with the secret ones masked."""
        return {
            name: MASK if value and is_secret(name, self.also) else self.text(value) for name, value in named.items()
        }

    def text(self, text: str) -> str:
        """A text with `password=…`, `Authorization: …` and passwords in addresses masked."""
        pieces: list[str] = []
        at = behind = 0
        while (name := _NAME.search(text, at)) is not None:
            at = name.end()
            value = _VALUE.match(text, at) if is_secret(name[1], self.also) else None
            if value is not None:
                pieces += (text[behind:at], MASK)
                at = behind = value.end()
        return _ADDRESS.sub(rf"\1{MASK}\2", "".join([*pieces, text[behind:]]))

    def job(self, job: Job) -> Job:
        """A job with every part masked that can hold a secret; options keep the metadata that came with it masked."""
        options = job.options
        if options.metadata:
            options = msgspec.structs.replace(options, metadata=self.values(options.metadata))
        return msgspec.structs.replace(
            job,
            payload=self.json(job.payload),
            result=None if job.result is None else self.json(job.result),
            options=options,
            metadata=self.values(job.metadata),
            last_error=None if job.last_error is None else self.text(job.last_error),
            history=tuple(Failure(one.at, one.attempt, self.text(one.error)) for one in job.history),
            log=tuple(map(self.text, job.log)),
        )


class Nothing(Redaction, frozen=True):
    """Masks nothing, for people who may see secrets."""

    def json(self, raw: bytes) -> bytes:
        """The bytes as they are."""
        return raw

    def values(self, named: Mapping[str, str]) -> dict[str, str]:
        """The map as it is."""
        return dict(named)

    def text(self, text: str) -> str:
        """The text as it is."""
        return text


EVERYTHING_SHOWN = Nothing()
