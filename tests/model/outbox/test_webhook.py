from __future__ import annotations

import base64
from datetime import UTC, datetime
from email.utils import format_datetime
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidInput, InvalidOption, StokerError
from stoker.model.outbox.webhook import (
    LARGEST_BODY,
    Endpoint,
    answer,
    endpoint,
    is_public,
    pause,
    secrets,
    sign,
    verify,
)
from stoker.model.time import DAY, SECOND, instant

NOW = instant(datetime(2030, 1, 1, tzinfo=UTC))
STAMP = NOW // SECOND
OLD, NEW = ("whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))

PUBLIC = ["1.1.1.1", "93.184.216.34", "2606:2800:220:1::1", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1", "2002:101:101::1"]
PRIVATE = [
    *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "0.0.0.0", "255.255.255.255"),
    *("169.254.169.254", "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.1.1", "240.0.0.1"),
    *("::1", "::", "fe80::1", "fe80::1%1", "fc00::1", "ff0e::1", "2001:db8::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2"),
    *("fec0::1", "feff::1", "192.88.99.1", "2002:c058:6301::1", "3fff::1", "3fff:fff::1", "5f00::1", "64:ff9b:1::1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::10.0.0.1", "2002:7f00:1::1"),
]


# --- where a request may go -----------------------------------------------------------------------------------------


@pytest.mark.spec("RELAY-10")
@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_called(address: str) -> None:
    assert is_public(ip_address(address))
    assert endpoint("https://shop.example/hook").choose([address]) == address


@pytest.mark.spec("RELAY-10")
@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_the_internet_cannot_reach_are_refused(address: str) -> None:
    assert not is_public(ip_address(address))
    with pytest.raises(StokerError, match=r"shop\.example is .*private network.*Messages wait"):
        endpoint("https://shop.example/hook").choose(["1.1.1.1", address])


@pytest.mark.spec("RELAY-10")
@pytest.mark.parametrize("address", PRIVATE)
def test_a_private_address_in_the_url_is_refused_where_it_is_written(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(InvalidOption, match="private network"):
        endpoint(f"https://{host}/hook")


@pytest.mark.spec("RELAY-10")
def test_networks_that_are_named_are_allowed_also_unencrypted() -> None:
    inner = endpoint("http://127.0.0.1:8080/hook", ["127.0.0.0/8", "fc00::/7"])
    assert inner.authority == "127.0.0.1:8080"
    assert inner.choose(["127.0.0.1", "::ffff:127.0.0.2", "fc00::1"]) == "127.0.0.1"
    for other in ("10.0.0.1", "1.1.1.1"):
        with pytest.raises(StokerError, match="without encryption"):
            inner.choose([other])
    both = endpoint("https://shop.example/hook", ["10.0.0.0/8"])
    assert both.choose(["1.1.1.1", "10.0.0.1"]) == "1.1.1.1"
    with pytest.raises(StokerError, match="has no address"):
        both.choose([])


@pytest.mark.spec("RELAY-10")
@pytest.mark.parametrize(
    ("url", "why"),
    [
        (7, "must be text"),
        ("shop.example/hook", "begin with https"),
        ("ftp://shop.example", "begin with https"),
        ("https:///hook", "name a host"),
        ("https://shop.example:99999", "is no URL"),
        ("https://[::1", "is no URL"),
        ("https://user:pw@shop.example", "user or a password"),
        ("https://user@shop.example", "user or a password"),
        ("https://shop.example/#top", "without #"),
        ("https://shop.example/a b", "without spaces"),
        ("https://shöp.example/", "ASCII"),
        ("http://shop.example/", "needs allow="),
    ],
)
def test_a_url_that_can_never_be_called_is_refused(url: str, why: str) -> None:
    with pytest.raises(InvalidOption, match=why) as refusal:
        endpoint(url)
    assert "pw" not in str(refusal.value)
    assert "None" not in str(refusal.value)


@pytest.mark.spec("RELAY-10")
def test_a_network_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidOption, match="such as"):
        endpoint("https://shop.example", ["10.0.0.1/8"])


@pytest.mark.spec("RELAY-10")
@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("https://shop.example/a?b=c", "shop.example"),
        ("https://shop.example:443/", "shop.example"),
        ("https://shop.example:8443", "shop.example:8443"),
        ("https://[2606:2800:220:1::1]:8443/", "[2606:2800:220:1::1]:8443"),
    ],
)
def test_the_request_names_host_and_port(url: str, authority: str) -> None:
    assert endpoint(url).authority == authority


@pytest.mark.spec("RELAY-10")
def test_an_endpoint_without_encryption_reaches_no_public_address() -> None:
    assert not Endpoint("http://shop.example", "shop.example", 80, encrypted=False).admits("1.1.1.1")
    assert Endpoint("http://shop.example", "shop.example", 80, encrypted=False).authority == "shop.example"


# --- the signature --------------------------------------------------------------------------------------------------


@pytest.mark.spec("RELAY-11")
def test_the_signature_is_that_of_the_published_example() -> None:
    key = secrets("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body) == expected


def request(body: bytes = b"{}", *, by: str | list[str] = OLD, stamp: int = STAMP) -> dict[str, str]:
    signature = sign(secrets(by), "id-1", stamp, body)
    return {"Webhook-Id": "id-1", "webhook-timestamp": str(stamp), "webhook-signature": signature}


@pytest.mark.spec("RELAY-11")
def test_one_of_two_secrets_is_enough_on_either_side() -> None:
    assert request(by=[OLD, NEW])["webhook-signature"].count("v1,") == 2
    assert verify(request(by=[OLD, NEW]), b"{}", NEW, NOW) == "id-1"
    assert verify(request(by=OLD), b"{}", [NEW, OLD], NOW) == "id-1"
    with pytest.raises(InvalidInput, match="not made with this secret"):
        verify(request(by=OLD), b"{}", NEW, NOW)


@pytest.mark.spec("RELAY-11")
@pytest.mark.parametrize("away", [-301, 301])
def test_an_old_request_is_refused_although_its_signature_is_right(away: int) -> None:
    with pytest.raises(InvalidInput, match="replayed"):
        verify(request(stamp=STAMP + away), b"{}", OLD, NOW)
    assert verify(request(stamp=STAMP + away - away // 301), b"{}", OLD, NOW) == "id-1"


@pytest.mark.spec("RELAY-11")
@given(body=st.binary(max_size=64), changed=st.binary(max_size=64))
def test_only_the_body_that_was_signed_passes(body: bytes, changed: bytes) -> None:
    if body == changed:
        assert verify(request(body), changed, OLD, NOW) == "id-1"
    else:
        with pytest.raises(InvalidInput, match="was changed"):
            verify(request(body), changed, OLD, NOW)


@pytest.mark.spec("RELAY-11")
@pytest.mark.parametrize("name", ["Webhook-Id", "webhook-timestamp", "webhook-signature"])
@pytest.mark.parametrize("value", [None, "", "ü"])
def test_a_request_needs_all_three_headers(name: str, value: str | None) -> None:
    headers = {**request(), name: value or ""}
    with pytest.raises(InvalidInput, match="webhook"):
        verify(headers, b"{}", OLD, NOW)


@pytest.mark.spec("RELAY-11")
@pytest.mark.parametrize(
    "name, value",
    [
        ("webhook-timestamp", "1" * 5_000),
        ("webhook-timestamp", f"{NOW // SECOND:013}"),
        ("webhook-timestamp", "-5"),
        ("webhook-timestamp", "²"),
        ("webhook-id", "x" * 513),
        ("webhook-id", "a\nb"),
        ("webhook-id", "\udc80"),
        ("webhook-id", 7),
        ("webhook-signature", "v1,\udc80"),
        ("webhook-signature", "v1,a " * 1_000),
    ],
)
def test_a_header_that_is_too_long_or_no_text_is_refused_unread(name: str, value: str) -> None:
    headers = {key.lower(): text for key, text in request().items()} | {name: value}
    with pytest.raises(InvalidInput, match=name) as refusal:
        verify(headers, b"{}", OLD, NOW)
    assert len(str(refusal.value)) < 500


@pytest.mark.spec("RELAY-11")
@pytest.mark.parametrize("body", ["{}", None, bytes(LARGEST_BODY + 1)])
def test_a_body_is_bytes_of_a_bounded_size(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="body: must be bytes"):
        verify(request(), body, OLD, NOW)


@pytest.mark.spec("RELAY-11")
@pytest.mark.parametrize("bad", ["", "whsec_", "whsec_!!", "whsec_c2hvcnQ=", 7, "whsec_" + "A" * 100])
def test_a_secret_that_is_none_is_refused_and_not_shown(bad: str) -> None:
    with pytest.raises(InvalidOption, match="24 to 64 random bytes") as refusal:
        secrets([bad])
    assert "AAAA" not in str(refusal.value)


@pytest.mark.spec("RELAY-11")
@pytest.mark.parametrize("count", [0, 3])
def test_there_are_one_or_two_secrets(count: int) -> None:
    with pytest.raises(InvalidOption, match="must be one, or two"):
        secrets([OLD] * count)


# --- the answer -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("RELAY-12")
def test_what_a_status_means() -> None:
    assert {status for status in range(100, 600) if answer(status) == "accepted"} == set(range(200, 300))
    assert {status for status in range(100, 600) if answer(status) == "never"} == set(range(400, 500)) - {408, 429}
    assert answer(302) == answer(408) == answer(429) == answer(500) == "later"


@pytest.mark.spec("RELAY-12")
def test_retry_after_is_seconds_or_a_date_of_at_most_a_day() -> None:
    assert pause(None, NOW) is pause("", NOW) is pause("soon", NOW) is pause("-3", NOW) is None
    assert pause(" 30 ", NOW) == 30 * SECOND
    assert pause("9" * 400, NOW) == DAY
    assert pause("Tue, 01 Jan 2030 00:00:05 GMT", NOW) == 5 * SECOND
    assert pause("Tue, 01 Jan 2030 00:00:05 -0000", NOW) == 5 * SECOND
    assert pause(format_datetime(datetime(2029, 1, 1, tzinfo=UTC)), NOW) == 0
    assert pause(format_datetime(datetime(2040, 1, 1, tzinfo=UTC)), NOW) == DAY


@pytest.mark.spec("RELAY-16")
def test_errors_name_scheme_and_host_of_a_url_alone() -> None:
    """The path of a webhook is often its password."""
    made = endpoint("https://hooks.example:8443/services/T0/xoxsecret?token=xoxsecret")
    assert made.shown == "https://hooks.example:8443"
    assert endpoint("http://10.0.0.1/xoxsecret", ["10.0.0.0/8"]).shown == "http://10.0.0.1"
    for addresses in (["10.0.0.1"], []):
        with pytest.raises(StokerError, match=r"https://hooks\.example:8443 is not called") as refused:
            made.choose(addresses)
        assert "xoxsecret" not in str(refused.value)


@pytest.mark.spec("RELAY-16")
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://10.0.0.1/xoxsecret", "https://10.0.0.1"),
        ("https://shop.example/xoxsecret#a", "https://shop.example"),
        ("http://shop.example/xoxsecret", "http://shop.example"),
        ("https://xoxsecret:pw@shop.example", "https://shop.example"),
        ("https://shop.example:99999/xoxsecret", "a text that is not shown"),
        ("shop.example/xoxsecret", "a text that is not shown"),
    ],
)
def test_a_url_that_is_refused_is_shown_without_its_path(url: str, shown: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        endpoint(url)
    assert refused.value.value == shown
    assert "xoxsecret" not in str(refused.value)


@pytest.mark.spec("RELAY-11")
def test_a_secret_with_other_characters_than_those_of_base64_is_refused() -> None:
    """A decoder that skips them would make another key of a secret that was copied wrong."""
    good = "whsec_" + base64.b64encode(bytes(32)).decode()
    assert secrets(good) == (bytes(32),)
    with pytest.raises(InvalidOption):
        secrets(good.replace("A", "A\n", 1))
