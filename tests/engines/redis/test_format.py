"""FORMAT.md tells what is stored: its keys, fields and parts are those of the code and of a store in use."""

from __future__ import annotations

import re
import struct
from importlib.resources import files

import pytest

from stoker.engines import redis
from stoker.engines.redis import events, keys
from stoker.engines.redis.control import QUEUE_FIELDS
from stoker.engines.redis.record_format import PARTS, STATE, STATE_FORMAT
from stoker.model.control import Presence, Tuning
from stoker.model.events import Event, EventType, Point
from stoker.model.job import Demand, Draft, Options
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed, Outcome, Rejected
from stoker.model.throttle import Rate
from stoker.model.time import HOUR, MINUTE
from stoker.model.unique import Unique
from tests.engines.redis.stand import Stand

pytestmark = [pytest.mark.engine("redis"), pytest.mark.spec("REDIS-26")]

PAGE = files(redis).joinpath("FORMAT.md").read_text(encoding="utf-8")
ROWS = [line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| `")]
KEYS = {name.partition(":")[0] for row in ROWS for name in re.findall(r"`([^`]+)`", row)}


def test_every_key_is_on_the_page() -> None:
    per_queue = {*keys.PLAIN_KEYS, *keys.SUBQUEUE_KEYS, keys.HELD}
    assert {*keys.FIXED, *events.KEYS, *per_queue, keys.SCHEDULES, keys.STEPS, keys.STEP_NAMES, keys.ASKING} <= KEYS


def test_the_fields_of_a_state_are_those_on_the_page() -> None:
    fields = " · ".join(f"{field.name}{struct.calcsize('>' + field.code)}" for field in STATE)
    assert fields in re.sub(r"\s+", " ", PAGE)
    assert f"fields ({STATE_FORMAT.size} bytes)" in PAGE


def test_the_parts_of_a_body_are_those_on_the_page() -> None:
    flags = re.search(r"in this order \(`record_format.PARTS`\): (.*?)\. ", PAGE, re.DOTALL)
    assert flags is not None
    found = re.findall(r"(\d+) ([a-z ]+)\s\(size(\d)", re.sub(r"\s+", " ", flags[1]))
    assert found == [(str(part.flag), part.name, str(part.size.size)) for part in PARTS]


def test_the_fields_of_a_queue_are_those_on_the_page() -> None:
    [row] = [line for line in PAGE.splitlines() if line.startswith("| `queues`")]
    assert {f"`{field}`" for field in (*QUEUE_FIELDS, "used")} <= set(re.findall(r"`[a-z_]+`", row))


async def test_a_store_in_use_has_no_key_that_is_not_on_the_page(redis_url: str, redis_prefix: str) -> None:
    async with Stand.on(redis_url, redis_prefix) as stand:
        engine, now = stand.engine, stand.clock()
        options = Options(keep=HOUR)
        drafts = [Draft(stand.mint(), "work", unique=Unique(str(n)), options=options) for n in range(4)]
        await engine.jobs.insert([*drafts, Draft(stand.mint(), "work", delay=MINUTE)])
        await engine.jobs.renew("w", [], first=True)
        claims = await engine.jobs.claim(Demand("w", (("default", 4),)))
        outcomes: tuple[Outcome, ...] = (Done(b"1"), Failed("again", after=HOUR), Rejected("no"))
        await engine.jobs.settle(
            [conclude(claim, outcome, metadata={"a": "b"}) for claim, outcome in zip(claims, outcomes, strict=False)]
        )
        await engine.control.tune("default", Tuning(workers=3))
        await engine.control.tune("api", Rate(n=5, per=60))
        await engine.control.lock("lock", "me", HOUR)
        await engine.control.beat(Presence(worker="w", host="h", pid=1, queues={}))
        await engine.timeline.record(
            [Event(now, EventType.STARTED, drafts[0].job_id, "q", "k")], [Point("q", "m", now, 1)], now=now
        )
        tag = f"{{{redis_prefix}}}:"
        stored = [key.decode().removeprefix(tag) for key in await stand.call("KEYS", f"{tag}*")]
        found = {name.partition(":")[0] for name in stored}
        assert found <= KEYS
        assert len(found) >= 20
