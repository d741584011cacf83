"""The keys of an app: how they are given, what they open, and what they hide."""

from __future__ import annotations

import base64

import pytest

from stoker import Seal, Stoker, Unique
from stoker.engines.sealed.seal import Closed
from stoker.errors import InvalidInput, InvalidName, InvalidOption, PayloadTooLarge
from stoker.model.seal import Envelope, read

KEY, OTHER = bytes(range(32)), bytes(32)
JOB, COPY = b"j" * 16, b"c" * 16


def opened(seal: Seal, text: str, field: str = "result", place: bytes = JOB) -> bytes:
    sealed = read(text)
    assert sealed is not None
    return seal.open(sealed, field, [place])


@pytest.mark.spec("SEAL-10")
def test_the_first_key_seals_and_all_open() -> None:
    old, new = Seal({"old": OTHER}), Seal({"new": KEY, "old": OTHER})
    text = old.close(b"x", "result", JOB)
    assert opened(new, text) == opened(old, text) == b"x"
    newer = new.close(b"x", "result", JOB)
    assert (new.current, new.keys, read(newer) is not None) == ("new", ("new", "old"), True)
    assert newer != new.close(b"x", "result", JOB), "each value has a nonce of its own"
    with pytest.raises(Closed, match="sealed with key 'new', and there are only 'old'"):
        opened(old, newer)


@pytest.mark.spec("SEAL-03")
def test_a_value_opens_only_in_its_place() -> None:
    seal = Seal({"k": KEY})
    text = seal.close(b"x", "result", JOB)
    for field, place in (("payload", JOB), ("result", COPY)):
        with pytest.raises(Closed, match="changed in the store or moved"):
            opened(seal, text, field, place)
    with pytest.raises(Closed):
        opened(Seal({"k": OTHER}), text)
    sealed = read(text)
    assert sealed is not None
    for at in range(len(sealed.body)):
        changed = bytes(byte ^ (place == at) for place, byte in enumerate(sealed.body))
        with pytest.raises(Closed):
            seal.open(Envelope("k", changed), "result", [JOB])


@pytest.mark.spec("SEAL-04")
def test_what_a_copy_carries_is_proven() -> None:
    seal = Seal({"k": KEY})
    proof = seal.prove(COPY, [JOB, OTHER[:16]])
    assert seal.proven(proof, [COPY]) == (JOB, OTHER[:16])
    assert seal.proven(proof, [JOB]) == seal.proven(proof[:-4], [COPY]) == seal.proven(None, [COPY]) == ()
    assert Seal({"k": OTHER}).proven(proof, [COPY]) == Seal({"x": KEY}).proven(proof, [COPY]) == ()
    assert seal.proven("k~?", [COPY]) == ()


@pytest.mark.spec("SEAL-11")
def test_a_hidden_key_is_a_keyed_digest_that_outlives_rotations() -> None:
    seal = Seal({"k": KEY})
    assert seal.hidden("ann") == seal.hidden("ann") != seal.hidden("bob")
    assert seal.hidden("ann") != Seal({"k": OTHER}).hidden("ann")
    assert (
        Seal({"new": OTHER, "k": KEY}).hidden("ann")
        == Seal({"new": OTHER}, digest=KEY).hidden("ann")
        == seal.hidden("ann")
    )
    assert "ann" not in seal.hidden("ann")


@pytest.mark.spec("SEAL-10")
def test_keys_are_bytes_or_base64_and_never_shown() -> None:
    for text in (base64.b64encode(KEY).decode(), f" {base64.urlsafe_b64encode(KEY).decode()}\n"):
        assert opened(Seal({"k": KEY}), Seal({"k": text}).close(b"x", "result", JOB)) == b"x"
    for wrong in (b"short", "short", "!" * 44, KEY * 2, 7, None):
        with pytest.raises(InvalidOption, match="key k: must be 32 random bytes") as refused:
            Seal({"k": wrong})  # type: ignore[dict-item]
        assert "short" not in str(refused.value)
    for nothing in (dict[str, bytes](), None, "key"):
        with pytest.raises(InvalidOption, match="at least one id"):
            Seal(nothing)  # type: ignore[arg-type]
    with pytest.raises(InvalidName, match="key id"):
        Seal({"a b": KEY})
    assert repr(Seal({"k": KEY})) == "Seal(keys={'k': ...})"
    with pytest.raises(InvalidInput, match="must be a Seal"):
        Stoker("memory://", seal=KEY)  # type: ignore[arg-type]


@pytest.mark.spec("SEAL-11")
def test_a_plain_app_refuses_to_hide_a_key() -> None:
    jobs = Stoker("memory://")

    @jobs.task(unique=Unique("ann", digest=True))
    def send() -> None: ...

    with pytest.raises(InvalidInput, match="seal=Seal"):
        send.draft()
    with pytest.raises(InvalidInput, match="seal=Seal"):
        jobs.draft("send", unique=Unique("bob", digest=True))


@pytest.mark.spec("SEAL-12")
async def test_a_limit_counts_the_sealed_size() -> None:
    async with Stoker("memory://", seal=Seal({"k": KEY})) as jobs:
        jobs.declare("send")
        await jobs.enqueue(jobs.draft("send", ["x" * 786_000]))
        with pytest.raises(PayloadTooLarge, match="when it is sealed, which adds a third"):
            await jobs.enqueue(jobs.draft("send", ["x" * 786_500]))
