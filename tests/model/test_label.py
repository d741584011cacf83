"""Labels: what a template may be, and what it makes of the arguments that people may see."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.errors import InvalidInput
from stoker.model.label import LONGEST, UNKNOWN, Label

pytestmark = pytest.mark.spec("LABEL-01")


def label(template: str, **arguments: Any) -> str:
    return Label(template).text(arguments.__getitem__)


@pytest.mark.parametrize(
    ("template", "arguments", "text"),
    [
        ("order {id} for {customer}", {"id": 7, "customer": "acme"}, "order 7 for acme"),
        ("{order.id} of {order.items.1}", {"order": {"id": 7, "items": ["a", "b"]}}, "7 of b"),
        ("{{{flag}}}", {"flag": True}, "{true}"),
        ("a  {text}\n", {"text": " two\nlines "}, "a two lines"),
        ("{tags}", {"tags": ["é", 1]}, '["é", 1]'),
        ("nightly", {}, "nightly"),
        ("{id} {gone} {id.part} {list.x} {list.9}", {"id": 7, "list": []}, f"7 {' '.join([UNKNOWN] * 4)}"),
        ("{none}", {"none": None}, UNKNOWN),
    ],
)
def test_a_label_is_made_of_the_arguments(template: str, arguments: dict[str, Any], text: str) -> None:
    assert label(template, **arguments) == text


@pytest.mark.spec("LABEL-02")
def test_a_label_has_no_secret() -> None:
    """A secret is masked by its name, also inside an argument; so is the password of an address."""
    assert label("{api_key} {user.password}", api_key="x", user={"password": "y"}) == "[hidden] [hidden]"
    assert label("{user}", user={"password": "y"}) == '{"password": "[hidden]"}'
    assert label("{where}", where="redis://u:geheim@host") == "redis://u:[hidden]@host"


def test_a_long_label_is_cut() -> None:
    assert label("{a}", a="x" * LONGEST) == "x" * LONGEST
    assert label("{a}", a="x" * 500) == "x" * (LONGEST - 1) + "…"


@pytest.mark.parametrize(
    "template", ["", "  ", 7, "x" * 501, "{}", "{0}", "{a!r}", "{a:>5}", "{a", "a}", "{a b}", "{a..b}"]
)
@pytest.mark.spec("LABEL-03")
def test_what_is_no_template_is_refused(template: Any) -> None:
    with pytest.raises(InvalidInput, match="label"):
        Label(template)


@pytest.mark.spec("LABEL-03")
def test_a_template_names_parameters() -> None:
    Label("{a.b} x").check("send", ["a"])
    with pytest.raises(InvalidInput, match="names 'id', which is no parameter of task send; these are: to, text"):
        Label("{id}").check("send", ["to", "text"])
    with pytest.raises(InvalidInput, match="these are: none"):
        Label("{id}").check("send", [])
