"""The API keeps the promises of its own OpenAPI document, whatever is sent to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis.config import SchemathesisConfig

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.model.throttle import Rate
from stoker.web import Limits, dashboard
from stoker.web.api.document import document
from tests.web.serving import Served

# A filter, a task's name and a schedule's name are judged beyond what a JSON schema can say.
CONFIG = SchemathesisConfig.from_dict(
    {"checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", "403", "404", "409", "422"]}}}
)
SCHEMA: Any = schemathesis.openapi.from_dict(document(), config=CONFIG)
CALLS = [(path, method) for path, item in document()["paths"].items() for method in item]


class Api(NamedTuple):
    """A served API: where it is, a token for it, and a connection that is used again."""

    url: str
    headers: dict[str, str]
    session: requests.Session


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    path: Path = tmp_path_factory.mktemp("api") / "jobs.db"
    app = Stoker(f"sqlite:///{path}", durability="process")
    for kind in ("send", "resize"):
        app.declare(kind)

    async def fill() -> str:
        for _ in range(5):
            await app.enqueue(app.draft("send"))
        await (await app.engine()).control.tune("stripe", Rate(10, per=1))
        await app.schedule("nightly", app.draft("send"), cron="0 3 * * *")
        return await Admin(app).tokens.create("fuzz", "admin")

    secret = app.run(fill())
    app.run(app.close())
    served = Served(dashboard(app, limits=Limits(seconds=30, enqueued_per_minute=10**9)))
    with requests.Session() as session:
        yield Api(served.url, {"Authorization": f"Bearer {secret}"}, session)
    served.close()


@pytest.mark.spec("REST-09")
@pytest.mark.parametrize("path, method", CALLS)
@pytest.mark.timeout(1_200)
def test_every_call_keeps_its_document(api: Api, request: pytest.FixtureRequest, path: str, method: str) -> None:
    cases = 10_000 if request.config.getoption("--campaign") else 500
    most = -(-cases // len(CALLS))
    answered: list[int] = []

    @hypothesis.settings(
        max_examples=most, deadline=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(case=SCHEMA[path][method.upper()].as_strategy())
    def check(case: Any) -> None:
        answer = case.call_and_validate(base_url=api.url, headers=api.headers, session=api.session)
        answered.append(answer.status_code)
        assert answer.status_code < 500

    check()
    assert answered
