"""`RESULTS`: what the members of a group returned, read when its callback starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stoker.executors.outcomes import DecidedInChild, outcome_of_unfit
from stoker.groups import results_of
from stoker.model import ids
from stoker.model.errors import InvalidPayload, NotFound
from stoker.model.groups import GROUP
from stoker.model.job import Claim
from stoker.model.markers import RESULTS, fill, stands
from stoker.model.seal import check_open

if TYPE_CHECKING:
    from typing import Any

    from stoker.context import Context
    from stoker.engines.base import Engine
    from stoker.task import Task
    from stoker.worker.task_runners import HandlerCall


async def with_results(engine: Engine, claim: Claim) -> Claim:
    """The claim of a callback with its members' results where `RESULTS` stands; what is stored stays as it is."""
    if not stands(claim.payload, claim.options.results, RESULTS):  # an operator wrote something in its place
        return claim
    id_ = ids.parse((claim.options.metadata or {})[GROUP], "group id")
    [group] = await engine.groups.get([id_])
    if group is None:
        raise NotFound.group(id_)
    found = [b"null" if job is None or job.result is None else job.result for job in await results_of(engine, group)]
    for one in found:
        check_open(one, "a result of its group")
    value = b"[%s]" % b",".join(found)
    return msgspec.structs.replace(claim, payload=fill(claim.payload, claim.options.results, RESULTS, value))


def reading_results(engine: Engine, task: Task[..., Any], run: HandlerCall) -> HandlerCall:
    """The call of a callback's handler, with its arguments read first: an error there is one of the run."""

    async def call(context: Context) -> Any:
        try:
            claim = await with_results(engine, context.claim)
            context.arguments = task.signature.decode(claim.payload)
        except InvalidPayload as error:
            raise DecidedInChild(outcome_of_unfit(context.claim, error), str(error)) from None
        context.claim = claim
        return await run(context)

    return call
