"""What a job belongs to: the chain before and after it, and the members of its group."""

from __future__ import annotations

from typing import Any

from stoker.model import ids
from stoker.model.groups import Group
from stoker.model.job import PARENT, Job, links
from stoker.model.time import Instant
from stoker.model.words import count
from stoker.web.pages.job_facts import RELATIVES, Facts, metadata
from stoker.web.visit import Visit


def chain(visit: Visit, job: Job, facts: Facts, now: Instant) -> list[dict[str, Any]]:
    """The chain of a job from what came before it to what comes last; empty where it is alone."""
    found = []
    parent = metadata(job).get(PARENT)
    if parent is not None:
        before = facts.relatives.get(ids.parse(parent))
        found.append(_link(visit, parent, "its record is not kept any more", before, now, "ran before it"))
    found.append(_link(visit, ids.text(job.id), job.kind, job, now, "this job"))
    for link in links(job.options):
        there = facts.relatives.get(link.job_id)
        found.append(_link(visit, ids.text(link.job_id), link.kind, there, now, "follows its success"))
    return found if len(found) > 1 else []


def _link(visit: Visit, id_: str, kind: str, there: Job | None, now: Instant, place: str) -> dict[str, Any]:
    return {
        "kind": kind if there is None else there.kind,
        "place": place,
        "status": "" if there is None else there.view(now),
        "url": "" if there is None or place == "this job" else visit.url(f"jobs/{id_}"),
    }


def group(visit: Visit, facts: Facts, now: Instant) -> dict[str, Any] | None:
    """The group of a job: what became of its members, and what its end stores."""
    group = facts.group
    if group is None:
        return None
    members = [facts.relatives[one] for one in group.members[:RELATIVES] if one in facts.relatives]
    after = (
        ("every member is done", group.then),
        ("one is not", group.on_failure),
        ("all have ended", group.on_finish),
    )
    return {
        "done": group.done,
        "total": group.total,
        "note": _group_note(group),
        "members": [
            {
                "status": (status := one.view(now)),
                "title": f"{one.kind}, {status}",
                "url": visit.url(f"jobs/{ids.text(one.id)}"),
                "here": one.id == facts.job.id,
            }
            for one in members
        ],
        "hidden": max(group.total - len(members), 0),
        "after": [f"{draft.kind} when {when}" for when, draft in after if draft is not None],
    }


def _group_note(group: Group) -> str:
    ended = [f"{n:,} {word}" for n, word in ((group.dead, "dead"), (group.canceled, "canceled")) if n]
    if group.closed_at is not None:
        rest = "closed"
    elif not group.sealed:
        rest = "more may join"
    else:
        rest = f"waits for {count(group.waiting, 'member')}"
    return ", ".join([f"{group.done:,} of {group.total:,} done", *ended, rest])
