"""Access tokens and operations as values."""

from __future__ import annotations

import msgspec
import pytest

from stoker.model.access import Identity
from stoker.model.errors import InvalidInput, InvalidName
from stoker.model.operations import SILENT_AFTER, Operation
from stoker.model.tokens import AccessToken, Session, digest


@pytest.mark.spec("TOKEN-03")
def test_a_token_opens_for_its_secret_while_it_is_good() -> None:
    token = AccessToken(name="ci", sha256=digest("secret"), role="operate", queues=("mail",), expires=10)
    assert token.opens("secret", 9)
    assert not token.opens("Secret", 9)
    assert not token.opens("secret", 10)
    revoked = msgspec.structs.replace(token, revoked=1)
    assert not revoked.opens("secret", 9)
    assert (token.state(9), token.state(10), revoked.state(10)) == ("valid", "expired", "revoked")
    assert AccessToken(name="ci", sha256=digest("secret")).opens("secret", 10**15)
    assert token.identity == Identity("ci", "operate", frozenset({"mail"}))


@pytest.mark.spec("TOKEN-03")
@pytest.mark.parametrize(
    ("wrong", "error", "why"),
    [
        ({"name": "no spaces"}, InvalidName, "token"),
        ({"role": "root"}, InvalidInput, "read, operate, admin"),
        ({"queues": ("no spaces",)}, InvalidName, "queue"),
        ({"sha256": "secret"}, InvalidInput, "64 hexadecimal"),
        ({"sha256": "X" * 64}, InvalidInput, "64 hexadecimal"),
    ],
)
def test_what_is_no_token_is_refused(wrong: dict[str, object], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        AccessToken(**{"name": "ci", "sha256": digest("x"), **wrong})  # type: ignore[arg-type]


@pytest.mark.spec("TOKEN-04")
def test_a_session_opens_for_its_secret_until_it_expires() -> None:
    session = Session(sha256=digest("secret"), token="ci", created=1, expires=10)
    assert session.opens("secret", 9)
    assert not session.opens("Secret", 9)
    assert not session.opens("secret", 10)
    with pytest.raises(InvalidInput, match="64 hexadecimal"):
        Session(sha256="secret", token="ci", created=1, expires=10)
    with pytest.raises(InvalidName, match="token"):
        Session(sha256=digest("secret"), token="no spaces", created=1, expires=10)


@pytest.mark.spec("OPERATION-03")
def test_an_operation_that_falls_silent_is_interrupted() -> None:
    one = Operation(id="1", who="maria", action="cancel", filter="", bound=0, started=0, seen=5)
    assert not one.interrupted(5 + SILENT_AFTER)
    assert one.interrupted(6 + SILENT_AFTER)
    assert (one.shown_state(5), one.shown_state(6 + SILENT_AFTER)) == ("running", "interrupted")
    assert not one.ended
    over = msgspec.structs.replace(one, state="stopped")
    assert over.ended
    assert not over.interrupted(6 + SILENT_AFTER)
