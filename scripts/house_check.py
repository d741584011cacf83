"""Checks rules of the house over all files: no address of a machine or registry, our own words in names, statements
that some code runs and that stand beside their module, and migrations that are numbered one after the other, which two
branches may each be on their own and are not together.

What is written here must read the same on every machine, so no local path and no package index belongs into it.
The glossary is checked only where names are defined in the library; prose may explain other systems in their words.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = {".git", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "__pycache__"}
ADDRESSES = (
    # The brackets keep these patterns from matching their own source.
    (re.compile(r"(?<![\w.])/(?:[w]ork|[r]oot|home/\w+|Users/\w+)/\w"), "a path of one machine"),
    (
        re.compile(r"[p]ythonhosted\.org|[p]ypi\.[\w.]+/simple|(?:--|_|^)[e]?xtra[-_]index|[i]ndex[-_]url"),
        "a package index",
    ),
)
BANNED = {"ack", "actor", "dlq", "heartbeat", "nack"}
ENGINES = "src/stoker/engines"
STATEMENT = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
LOOKED_UP = re.compile(r"""(?:\bsql\(|\bSTATEMENTS\[)"(\w+)"[)\]]""")
MIGRATION = re.compile(r"(.*/migrations)/(\d+)_\w+\.sql$")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def skipped(folder: str) -> bool:
    return folder in SKIPPED or folder.startswith(".venv")


def files(root: Path) -> Iterator[Path]:
    """What a commit would hold; without git, everything but environments and caches."""
    listed = (
        subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        if (root / ".git").exists()
        else None
    )
    if listed and listed.returncode == 0:
        found: Iterable[Path] = (root / name for name in listed.stdout.split("\0") if name)
    else:
        found = (path for path in root.rglob("*") if not any(map(skipped, path.relative_to(root).parts)))
    yield from sorted(path for path in found if path.is_file())


def addresses(name: str, text: str) -> list[str]:
    """Complaints about lines that only make sense on one machine."""
    return [
        f"{name}:{number}: names {what}: {line.strip()[:80]}"
        for number, line in enumerate(text.splitlines(), 1)
        for pattern, what in ADDRESSES
        if pattern.search(line)
    ]


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name a module defines: classes, functions, parameters, variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def glossary(name: str, text: str) -> list[str]:
    """Complaints about names made of words that the glossary has another word for."""
    return [
        f"{name}:{line}: {word!r} uses {', '.join(sorted(bad))}; see docs/reference/glossary.md"
        for line, word in names(ast.parse(text))
        if (bad := BANNED.intersection(part.lower() for part in PART.findall(word)))
    ]


def migrations(names: Iterable[str]) -> list[str]:
    """Complaints about folders whose migrations are not 1, 2, 3, …"""
    folders: dict[str, list[int]] = {}
    for name in names:
        if migration := MIGRATION.search(name):
            folders.setdefault(migration[1], []).append(int(migration[2]))
    return [
        f"{folder}: migrations must be numbered 1, 2, 3, …, not {', '.join(map(str, sorted(numbers)))}"
        for folder, numbers in sorted(folders.items())
        if sorted(numbers) != list(range(1, len(numbers) + 1))
    ]


def statements(texts: Mapping[str, str]) -> list[str]:
    """Complaints about statements that no code of their engine looks up, and about files without their module.

    `texts` are files below the engines by their names there; those in `sql/` belong to all SQL engines.
    """
    used: dict[str, set[str]] = {}
    for name, text in texts.items():
        if name.endswith(".py"):
            used.setdefault(name.partition("/")[0], set()).update(LOOKED_UP.findall(text))
    found = []
    for name, text in sorted(texts.items()):
        engine = name.partition("/")[0]
        if name.endswith(".sql") and not MIGRATION.search(name):
            found += [
                f"{name}: no code runs the statement {one!r}"
                for one in STATEMENT.findall(text)
                if one not in used.get(engine, set()) | used.get("sql", set())
            ]
            if name.removesuffix(".sql") + ".py" not in texts:
                found.append(f"{name}: there is no module of this name beside it")
    return found


def check(root: Path) -> list[str]:
    """All complaints about a repository."""
    found = migrations(path.relative_to(root).as_posix() for path in files(root))
    engines = root / ENGINES
    found += statements(
        {
            path.relative_to(engines).as_posix(): path.read_text(encoding="utf-8")
            for path in files(root)
            if path.suffix in {".py", ".sql"} and path.is_relative_to(engines)
        }
    )
    for path in files(root):
        name = path.relative_to(root).as_posix()
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += addresses(name, text)
        if name.startswith("src/") and name.endswith(".py"):
            found += glossary(name, text)
    return found


if __name__ == "__main__":
    complaints = check(ROOT)
    print("\n".join(complaints), end="\n" if complaints else "")
    sys.exit(1 if complaints else 0)
