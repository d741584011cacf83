"""Tests the tests: plants known bugs, and small changes of `model/`, and says which of them no test noticed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

from tests.mutants import model_run, results, seeded_run

SAMPLE, SEED = 1_000, 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    seeded = commands.add_parser("seeded", help="plant the bugs of tests/mutants/seeded.toml one at a time")
    seeded.add_argument("words", nargs="*", help="only bugs whose name contains one of these; others keep their result")
    model = commands.add_parser("model", help="change src/stoker/model/ and run the tests of tests/model/")
    model.add_argument("modules", nargs="*", help="only these, as outbox/cursor.py; the results file stays as it is")
    model.add_argument("--seed", type=int, default=SEED, help=f"the order in which they are tried ({SEED})")
    model.add_argument(
        "--sample",
        type=number,
        default=SAMPLE,
        help=f"the first so many ({SAMPLE:,}); those that an earlier run of this seed tried on the same code are kept",
    )
    model.add_argument("--jobs", type=number, default=os.cpu_count() or 1, help="processes at a time")
    given = parser.parse_args()
    return plant(given.words) if given.command == "seeded" else change(given)


def number(text: str) -> int:
    """One or more, of what is counted."""
    if (found := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return found


def say(text: str) -> None:
    print(text, flush=True)


def plant(words: list[str]) -> int:
    """Plant bugs; 1 unless every one was caught."""
    if faults := [fault for one in seeded_run.bugs() if (fault := one.fault()) is not None]:
        raise SystemExit("\n".join(faults))
    chosen = seeded_run.bugs(words)
    if not chosen:
        raise SystemExit(f"no bug has a name with {' or '.join(words)}")
    found = []
    for one in seeded_run.run(chosen, say):
        found.append(one)
        results.keep_seeded(found)  # a run that is interrupted keeps what it has
    outcomes = Counter(one.outcome for one in found)
    say(f"{outcomes['caught']} of {len(found)} bugs caught")
    for one in found:
        if one.outcome != "caught":
            say(f"  {one.outcome}: {one.name} {one.by}")
    return 0 if outcomes["caught"] == len(found) else 1


def change(given: argparse.Namespace) -> int:
    """Change the model; 1 unless enough changes were noticed and every other one has its reason."""
    texts = model_run.sources(given.modules)
    if unknown := set(given.modules) - set(texts):
        raise SystemExit(f"there is no {min(unknown)} in src/stoker/model")
    everything, digest = model_run.changes(texts, given.seed), model_run.digest()
    outcome = results.Changes(given.seed, digest, len(everything))
    if not given.modules and (kept := results.model()).seed == given.seed and kept.digest == digest:
        outcome = kept
    picked = everything[outcome.tried : given.sample]
    say(f"{len(everything):,} changes in {len(texts)} modules; {outcome.tried:,} tried before, {len(picked):,} now")
    began = time.monotonic()
    if picked:
        found = model_run.run(picked, texts, given.jobs, say)
        survivors = [picked[number].name for number, one in found.items() if one == "survived"]
        outcome = outcome.more(len(found) - len(survivors), survivors)
    if not given.modules:
        results.keep_model(outcome)
    reasons = results.reasons()
    say(f"{outcome.killed:,} of {outcome.tried:,} noticed ({outcome.score:.1%}), {time.monotonic() - began:.0f} s")
    unexplained = [name for name in outcome.survivors if name not in reasons]
    for name in unexplained:
        say(f"  survived: {name}")
    return 0 if outcome.score >= results.ENOUGH and not unexplained else 1


if __name__ == "__main__":
    sys.exit(main())
