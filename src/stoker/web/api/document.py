"""The OpenAPI 3.1 document, made from the endpoints and their types."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec
from starlette.responses import Response

from stoker.admin.as_json import in_schema
from stoker.web.api import types as t
from stoker.web.api.endpoint import ROOT, Endpoint, refuse_parameters
from stoker.web.api.endpoints import ENDPOINTS
from stoker.web.problems import TITLES, ProblemDetails
from stoker.web.request import RequestContext

ALWAYS = (400, 401, 403, 404, 405, 409, 413, 415, 421, 422, 429, 500, 503)
"""Refusals that every call may answer with."""

OF_CHANGES = (408,)
"""Refusals of calls that send a body, besides."""

PLACES: dict[str, dict[str, Any]] = {
    "id": {"type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[0-9A-Za-z-]+$"},
    "worker": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9_.:@-]+$"},
    **{
        name: {"type": "string", "minLength": 1, "maxLength": 128, "pattern": t.NAME}
        for name in ("name", "stream", "consumer", "limit")
    },
}
"""The parts of an address."""


_COMPONENT = "#/components/schemas/{name}"


@cache
def document() -> dict[str, Any]:
    """The whole document; it does not depend on the store."""
    used = {one for endpoint in ENDPOINTS for one in (endpoint.answer, endpoint.given) if one is not None}
    ordered = sorted(used | {ProblemDetails}, key=lambda one: one.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template=_COMPONENT)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(f"{ROOT}{endpoint.path}", {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stoker",
            "version": "1",
            "description": "Jobs, queues, workers and schedules of one store. Errors are problem details (RFC 9457).",
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": in_schema(components),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                str(status): {
                    "description": TITLES.get(status, "Refused"),
                    "content": {"application/problem+json": {"schema": _ref(ProblemDetails)}},
                }
                for status in (*ALWAYS, *OF_CHANGES)
            },
        },
    }


def _ref(kind: type) -> dict[str, str]:
    return {"$ref": _COMPONENT.format(name=kind.__name__)}


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    places = re.findall(r"{(\w+)}", endpoint.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": PLACES[name]} for name in places]
    refusals = ALWAYS if endpoint.method == "GET" else (*ALWAYS, *OF_CHANGES)
    found: dict[str, Any] = {
        "operationId": _name(endpoint),
        "summary": endpoint.summary,
        "description": f"Needs the role {endpoint.role}.",
        "tags": [endpoint.tag],
        "responses": {
            str(endpoint.status): {
                "description": (endpoint.answer.__doc__ or "").partition("\n")[0],
                "content": {endpoint.media: {"schema": _ref(endpoint.answer)}},
            },
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in refusals},
        },
    }
    if endpoint.given is not None and endpoint.method == "GET":
        parameters += _query(endpoint.given)
    elif endpoint.given is not None:
        needed = any(one.required for one in msgspec.structs.fields(endpoint.given))
        found["requestBody"] = {"required": needed, "content": {"application/json": {"schema": _ref(endpoint.given)}}}
    if parameters:
        found["parameters"] = parameters
    return found


def _query(given: type) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([given], ref_template=_COMPONENT)
    schema = components[given.__name__]
    found = []
    for name, one in schema["properties"].items():
        plain = {key: value for key, value in one.items() if key != "anyOf"}
        for choice in one.get("anyOf", ()):
            if choice.get("type") != "null":
                plain |= choice
        if plain.get("default", "") is None:
            del plain["default"]
        found.append({"name": name, "in": "query", "required": name in schema["required"], "schema": plain})
    return found


def _name(endpoint: Endpoint) -> str:
    words = re.sub(r"[{}]", "", endpoint.path).replace("/", "_").replace("-", "_").strip("_")
    return f"{endpoint.method.lower()}_{words}"


async def serve(visit: RequestContext) -> Response:
    """The document as JSON."""
    refuse_parameters(visit)
    found = {**document(), "servers": [{"url": visit.root or "/"}]}
    return Response(msgspec.json.encode(found), media_type="application/json")
