"""A worker behind a bad network: what every engine with a server must survive, whatever it speaks.

A folder of faults makes a class of its own of `Network`, and gives it the fixtures `proxy` and `attempt`: a trial
through the proxy, with time limits short enough for a test.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.faults.trial import Trial
from tests.harness.proxy import Proxy

Attempt: TypeAlias = Callable[[], Trial]


class Network:
    @pytest.mark.spec("NETFAULT-01")
    async def test_reset_connections_are_replaced(self, proxy: Proxy, attempt: Attempt, campaign: bool) -> None:
        async with attempt() as trial:
            for _ in range(50 if campaign else 5):
                await trial.consuming()
                before = proxy.connections
                proxy.reset()
                await trial.consuming()
                assert proxy.connections > before

    @pytest.mark.spec("NETFAULT-01", "NETFAULT-02")
    async def test_a_server_that_accepts_no_connection_is_waited_for(self, proxy: Proxy, attempt: Attempt) -> None:
        async with attempt() as trial:
            await trial.consuming()
            proxy.refuse()
            await trial.until(lambda: trial.errors["EngineUnavailable"] and not trial.ready, "the outage is noticed")
            proxy.heal()
            await trial.consuming()
            await trial.until(lambda: trial.ready, "readiness is back")

    @pytest.mark.spec("NETFAULT-03")
    @pytest.mark.parametrize("half_open", [False, True], ids=["reset", "half open"])
    async def test_a_black_hole_is_noticed_and_left(self, half_open: bool, proxy: Proxy, attempt: Attempt) -> None:
        async with attempt() as trial:
            await trial.consuming()
            proxy.blackhole()
            await trial.until(lambda: trial.errors["EngineUnavailable"] and not trial.ready, "the silence is noticed")
            proxy.heal(half_open=half_open)
            await trial.consuming()

    @pytest.mark.spec("NETFAULT-03")
    async def test_connections_that_went_silent_one_by_one_do_not_stop_anything(
        self, proxy: Proxy, attempt: Attempt
    ) -> None:
        """No side resets them: only the time limit of a call can tell."""
        async with attempt() as trial:
            await trial.consuming()
            proxy.blackhole()
            proxy.heal(half_open=True)
            await trial.consuming()

    @pytest.mark.spec("NETFAULT-04")
    async def test_a_network_that_comes_and_goes(self, proxy: Proxy, attempt: Attempt) -> None:
        async with attempt() as trial:
            await trial.consuming()
            for hurt in (proxy.refuse, proxy.reset, proxy.blackhole):
                hurt()
                await asyncio.sleep(0.35)
                proxy.heal()
                await asyncio.sleep(0.35)
            await trial.consuming()

    @pytest.mark.spec("NETFAULT-05")
    async def test_a_slow_network_is_slow_and_a_slower_one_is_an_outage(self, proxy: Proxy, attempt: Attempt) -> None:
        async with attempt() as trial:
            proxy.latency(0.05)
            await trial.consuming()
            proxy.latency(2)
            await trial.until(lambda: not trial.ready, "the time limit is noticed")
            proxy.heal()
            await trial.consuming()

    @pytest.mark.spec("NETFAULT-05")
    async def test_answers_that_trickle_are_given_up(self, proxy: Proxy, attempt: Attempt) -> None:
        async with attempt() as trial:
            await trial.consuming()
            proxy.trickle()
            await trial.until(lambda: not trial.ready, "the time limit is noticed")
            proxy.heal()
            await trial.consuming()

    @pytest.mark.spec("NETFAULT-06")
    async def test_answers_that_break_off_are_never_taken_for_whole_ones(
        self, proxy: Proxy, attempt: Attempt, campaign: bool
    ) -> None:
        chance = _chance()
        async with attempt() as trial:
            for _ in range(500 if campaign else 20):
                cut = proxy.truncate_reply(keep=chance.choice((1, 4, 5, 6, 17, 40)), skip=chance.randrange(8))
                await trial.until(lambda cut=cut: cut.happened, "an answer broke off")  # type: ignore[misc]
            await trial.consuming()

    @pytest.mark.spec("NETFAULT-07")
    async def test_what_was_carried_out_and_never_answered_happens_once(
        self, proxy: Proxy, attempt: Attempt, campaign: bool
    ) -> None:
        chance = _chance()
        async with attempt() as trial:
            for number in range(1_000 if campaign else 40):
                silent = number % 20 == 19
                loss = proxy.lose_reply(then="silence" if silent else "reset", skip=chance.randrange(8))
                await trial.until(lambda loss=loss: loss.happened, "an answer was lost")  # type: ignore[misc]
            await trial.consuming()


def _chance() -> random.Random:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return random.Random(seed)
