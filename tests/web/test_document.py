"""The OpenAPI document says what the server does: references, statuses, what is needed, and every bound."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.app import Stoker
from stoker.model import job
from stoker.testing.clock import VirtualClock
from stoker.web import problems
from stoker.web.api import types
from stoker.web.api.document import ALWAYS, OF_CHANGES, document
from stoker.web.board import Dashboard
from tests.web.conftest import Client, claim, end, enqueue

WEB = Path(problems.__file__).parent
ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("memory", "sqlite", "postgres", "redis")]
PLACES = {"id": "0193b0f0-0000-7000-8000-000000000001"}
CALLS = [(method, path, call) for path, item in document()["paths"].items() for method, call in item.items()]


def resolved(reference: str) -> Any:
    found: Any = document()
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from references(one)


@pytest.mark.spec("REST-14")
def test_every_reference_leads_somewhere() -> None:
    found = set(references(document()))
    assert found
    for one in found:
        assert one.startswith("#/components/")
        assert resolved(one)


@pytest.mark.spec("REST-14")
def test_every_status_that_the_dashboard_refuses_with_is_in_the_document() -> None:
    written = "".join(one.read_text(encoding="utf-8") for one in WEB.rglob("*.py"))
    refused = {int(found) for found in re.findall(r"Problem\(\s*([0-9]{3})", written)}
    assert {422, 409, 503} < refused
    assert refused == {*ALWAYS, *OF_CHANGES}
    assert refused <= problems.TITLES.keys()
    for method, path, call in CALLS:
        told = {int(status) for status in call["responses"] if int(status) >= 400}
        assert told == ({*ALWAYS} if method == "get" else refused), (method, path)


@pytest.mark.spec("REST-14")
def test_names_are_those_of_the_model() -> None:
    assert f"^{job._NAME.pattern}$" == types.NAME


def fields(call: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields of a call by name, with their schemas, without null."""
    body = call.get("requestBody")
    if body is not None:
        found = resolved(body["content"]["application/json"]["schema"]["$ref"])["properties"]
    else:
        found = {one["name"]: one["schema"] for one in call.get("parameters", ()) if one["in"] == "query"}
    plain = {name: next(iter(one.get("anyOf", [one]))) for name, one in found.items()}
    return {name: resolved(one["$ref"]) if "$ref" in one else one for name, one in plain.items()}


def edges(schema: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
    """Values at the bounds of a schema and beyond them, and whether they are inside."""
    if "enum" in schema:
        yield from ((one, True) for one in schema["enum"])
        yield "no such word", False
    elif schema.get("type") == "string" and "maxLength" in schema:
        least, most = schema.get("minLength", 0), schema["maxLength"]
        yield from (("a" * least, True), ("a" * most, True), ("a" * (most + 1), False))
        yield from (("", False),) if least else ()
        yield from ((one, False) for one in ("-a", "a/b", "a@b") if schema.get("pattern") == types.NAME)
    elif schema.get("type") in ("integer", "number"):
        for name, step in (("minimum", -1), ("maximum", 1)):
            if name in schema:
                yield from ((schema[name], True), (schema[name] + step, False))
        yield from ((schema["exclusiveMinimum"], False),) if "exclusiveMinimum" in schema else ()
    elif schema.get("type") == "array":
        item = "a" if schema["items"]["pattern"] == types.NAME else PLACES["id"]
        yield from (([item] * schema["maxItems"], True), ([item] * (schema["maxItems"] + 1), False))


async def asked(client: Client, method: str, path: str, values: dict[str, Any]) -> httpx.Response:
    address = re.sub(r"{(\w+)}", lambda found: PLACES.get(found[1], "none"), path)
    if method == "get":
        sent = {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
        return await client.get(address, params=sent)
    headers = {"x-csrf-token": await client.csrf()}
    return await client.http.request(method.upper(), address, json=values, headers=headers)


def is_refused(answer: httpx.Response, name: str) -> bool:
    """Was a field refused by the type of the call?"""
    return answer.status_code == 422 and (
        (answer.json().get("field") in {name, f"{name}[...]"} and "Expected" in answer.json()["detail"])
        or "Invalid enum value" in answer.json()["detail"]
    )


@pytest.mark.spec("REST-14")
async def test_every_bound_of_the_document_is_that_of_the_server(board: Dashboard, client: Client) -> None:
    checked = 0
    for method, path, call in CALLS:
        for name, schema in fields(call).items():
            for value, inside in edges(schema):
                answer = await asked(client, method, path, {name: value})
                told = (method, path, name, str(value)[:40], answer.text)
                assert is_refused(answer, name) is not inside, told
                checked += 1
    assert checked > 300


@pytest.mark.spec("REST-14")
async def test_what_the_document_needs_the_server_needs(client: Client) -> None:
    needed = 0
    for method, path, call in CALLS:
        must = [one["name"] for one in call.get("parameters", ()) if one["in"] == "query" and one["required"]]
        if body := call.get("requestBody"):
            must = resolved(body["content"]["application/json"]["schema"]["$ref"])["required"]
            assert body["required"] is bool(must), path
        answer = await asked(client, method, path, {})
        missing = answer.status_code == 422 and "missing required field" in answer.json()["detail"]
        assert missing is bool(must), (method, path, answer.text)
        needed += bool(must)
    assert needed > 10


@pytest.mark.spec("REST-14")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_a_cursor_of_each_order_is_taken(app: Stoker, client: Client, clock: VirtualClock) -> None:
    for _ in range(3):
        await enqueue(app)
        clock.advance(1)
    await end(app, await claim(app, n=2))
    for order, n in {"newest": 3, "oldest": 3, "finished": 2, "due": 1}.items():
        seen: list[str] = []
        asking: dict[str, Any] = {"q": f"order:{order}", "limit": 1}
        while asking.get("after", "") is not None:
            page = (await client.get("/api/v1/jobs", params=asking)).json()
            seen += [one["id"] for one in page["jobs"]]
            asking["after"] = page["after"]
        assert len(seen) == len(set(seen)) == n, order
