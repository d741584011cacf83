"""Checks that the spec and the tests speak of the same behaviours.

`tests/spec.md` gives each behaviour an id in bold, such as CLAIM-03. A test cites it with `@pytest.mark.spec("…")`,
with `spec: …` in a docstring or comment, or by writing the id anywhere. An id without a test is a promise without
proof; a cited id that the spec does not know is a typo or a promise that was dropped. Both fail.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ID = r"[A-Z]+-\d+"
DEFINED = re.compile(rf"\*\*({ID})\*\*")
BARE = re.compile(rf"(?<![\w-])({ID})(?![\w-])")
LISTED = re.compile(rf"\bspec:\s*({ID}(?:[\s,#]+{ID})*)")
MARKED = re.compile(r"\bspec\(([^)]*)\)")


def defined(spec: str) -> list[str]:
    """The ids of the spec, in order; fenced examples do not count."""
    return DEFINED.findall(re.sub(r"```.*?```", "", spec, flags=re.DOTALL))


def cited(source: str, known: set[str]) -> set[str]:
    """The ids a source cites.

    `UTF-8` has the shape of an id too, so a bare word counts only when the spec knows it or its section.
    """
    sections = {name.partition("-")[0] for name in known}
    found = {name for name in BARE.findall(source) if name.partition("-")[0] in sections}
    for group in (*LISTED.findall(source), *MARKED.findall(source)):
        found.update(BARE.findall(group))
    return found


def check(spec: str, sources: Iterable[tuple[str, str]]) -> list[str]:
    """All complaints about a spec and the named sources of its tests."""
    ids = defined(spec)
    known = set(ids)
    complaints = [f"tests/spec.md: {name} is defined {n} times" for name, n in Counter(ids).items() if n > 1]
    proven: set[str] = set()
    for name, source in sources:
        mentioned = cited(source, known)
        proven |= mentioned
        complaints += [
            f"{name}: cites {unknown}, which tests/spec.md does not define" for unknown in sorted(mentioned - known)
        ]
    return complaints + [f"tests/spec.md: {name} is not cited by any test" for name in ids if name not in proven]


def sources(root: Path) -> Iterable[tuple[str, str]]:
    """Every test of the project and the public suite; not the tests of this script, whose ids are invented."""
    for folder in ("tests", "src/stoker/testing"):
        for file in sorted((root / folder).rglob("*.py")):
            if not file.is_relative_to(root / "tests" / "scripts"):
                yield str(file.relative_to(root)), file.read_text(encoding="utf-8")


if __name__ == "__main__":
    found = check((ROOT / "tests" / "spec.md").read_text(encoding="utf-8"), sources(ROOT))
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)
