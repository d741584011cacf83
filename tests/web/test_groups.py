"""The pages of groups."""

from __future__ import annotations

import re

import pytest

from stoker.app import Stoker
from stoker.model.job import Status
from stoker.web import Limits, Open, dashboard
from tests.web.conftest import Client, claim, end, text
from tests.web.test_api import ENGINES, UNKNOWN


@pytest.mark.spec("GROUP-37")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_groups_are_shown_with_their_progress_members_and_callbacks(app: Stoker, client: Client) -> None:
    assert "No group is stored" in text(await client.get("/groups"))
    after = app.draft("charge", queue="billing")
    group = await app.group([app.draft("send") for _ in range(4)], on_failure=after, then=app.draft("resize"))
    await end(app, (await claim(app, n=1)), Status.DEAD, "boom")
    listed = text(await client.get("/groups"))
    assert f"{group.id[:8]}…{group.id[-4:]} default, then resize open 1 of 4 3 1" in listed
    assert "No group is closed" in text(await client.get("/groups?state=closed"))
    page = await client.get(f"/groups/{group.id}")
    shown = text(page)
    assert "1 of 4 members ended 25 %" in shown.replace("\N{NO-BREAK SPACE}", " ")
    assert "pending 3 dead 1" in shown
    assert "charge to billing on_failure one is dead or canceled, or the group was abandoned not stored yet" in shown
    assert 'aria-label="0 done, 1 dead and 0 canceled of 4"' in page.text
    for do, view in (("cancel", "active"), ("retry", "dead")):
        query = f"is%3A{view}+group%3A{group.id}"
        assert f"/operations/new?do={do}&amp;q={query}" in page.text
        counted = text(await client.get(f"/operations/new?do={do}&q={query}"))
        assert ("Cancel 3 jobs?" if do == "cancel" else "Retry as copies 1 job?") in counted
    assert "/jobs?q=is%3Adead+group%3A" in page.text
    member = (await client.get(f"/api/v1/jobs?q=group:{group.id}")).json()["jobs"][0]["id"]
    assert f'href="/groups/{group.id}"' in (await client.get(f"/jobs/{member}")).text
    await end(app, await claim(app), Status.DONE, None)
    await (await app.engine()).groups.sweep()
    client.board.hub.forget()
    page = await client.get(f"/groups/{group.id}")
    shown = text(page)
    assert "done 3 dead 1" in shown and "It is closed and stays failed" in shown
    assert "not called" in shown, "every member would have had to be done"
    assert f'href="/jobs/{after.id}"' in page.text
    assert f'href="/groups/{group.id}"' in (await client.get(f"/jobs/{after.id}")).text
    for path in (f"/groups/{UNKNOWN}", "/groups/none"):
        answer = await client.get(path)
        assert (answer.status_code, "No group has this id" in answer.text) == (404, True)
    assert (await client.get("/groups?state=shut")).status_code == 422


@pytest.mark.spec("GROUP-37")
async def test_a_large_group_shows_what_it_counts_and_a_page_of_groups_goes_on(app: Stoker, client: Client) -> None:
    large = await app.group([app.draft("send") for _ in range(1_001)])
    shown = text(await client.get(f"/groups/{large.id}"))
    assert "not finished 1,001" in shown and "more than 1,000 are not looked at one by one" in shown
    for _ in range(50):
        await app.group([app.draft("send")])
    first = await client.get("/groups?state=open")
    [more] = re.findall(r'href="([^"]+)" rel="next"', first.text)
    rest = await client.get(more.replace("&amp;", "&"))
    assert (text(first).count(" open "), large.id in rest.text, "Back to the first" in rest.text) == (50, True, True)


@pytest.mark.spec("GROUP-37")
async def test_who_may_only_look_is_offered_no_action_on_a_group(app: Stoker) -> None:
    group = await app.group([app.draft("send")])
    board = dashboard(app, auth=Open(role="read"), limits=Limits(seconds=30))
    client = Client(board)
    assert "operations/new" not in (await client.get(f"/groups/{group.id}")).text
    await client.close()
    await board.close()
