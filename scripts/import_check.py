"""Checks what import-linter cannot say: which module may import which library.

- `model` is pure: of third parties only msgspec and cronsim, and nothing of the standard library that reads a clock,
  draws a random number or touches the world.
- A driver is imported in an engine's `connection.py` and nowhere else, so its errors are translated in one place.
- Whatever the repository imports is named in `pyproject.toml`: a library that only came along with another one is
  missing on the next machine.

Imports under `if TYPE_CHECKING` are free: they never run.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Collection, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL_LIBRARIES = {"stoker", "msgspec", "cronsim"}
IMPURE = {"asyncio", "os", "pathlib", "random", "secrets", "shutil", "socket", "subprocess", "tempfile", "time"}
DRIVERS = {"aiosqlite", "apsw", "asyncpg", "psycopg", "redis", "sqlite3"}

RELAY_TO_REDIS = Path("outbox/relays/redis_stream.py")
"""Redis is a target there, not a store."""


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and top-level package of every import that runs."""
    queue: list[ast.AST] = [tree]
    while queue:
        node = queue.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            queue.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.partition(".")[0]
        queue.extend(ast.iter_child_nodes(node))


def complaint(path: Path, name: str) -> str | None:
    """Why the module at `path`, relative to the package, may not import `name`."""
    if path.parts[0] == "model":
        if name in IMPURE or name in DRIVERS:
            return f"model is pure and may not import {name}"
        if name not in MODEL_LIBRARIES and name not in sys.stdlib_module_names:
            return f"model may import msgspec and cronsim of third parties, not {name}"
    if name in DRIVERS and path != RELAY_TO_REDIS and not (path.parts[0] == "engines" and path.name == "connection.py"):
        return f"driver {name} belongs into an engine's connection.py"
    return None


def check(package: Path) -> list[str]:
    """All complaints about the package in a folder."""
    found = []
    for file in sorted(package.rglob("*.py")):
        path = file.relative_to(package)
        for line, name in sorted(imported(ast.parse(file.read_text(encoding="utf-8")))):
            if why := complaint(path, name):
                found.append(f"{package.name}/{path}:{line}: {why}")
    return found


def declared(project: Path) -> set[str]:
    """The libraries that a `pyproject.toml` names, extras and groups included."""
    tables = tomllib.loads(project.read_text(encoding="utf-8"))
    table = tables["project"]
    lists = [table["dependencies"], *table["optional-dependencies"].values(), *tables["dependency-groups"].values()]
    wanted = [one for some in lists for one in some]
    return {_plain(re.split(r"[^\w.-]", one, maxsplit=1)[0]) for one in wanted}


def undeclared(root: Path, folders: Collection[str]) -> list[str]:
    """Imports of libraries that are installed here, but that nothing asks for by name."""
    named, sources = declared(root / "pyproject.toml"), packages_distributions()
    found = []
    for file in sorted(one for folder in folders for one in (root / folder).rglob("*.py")):
        for line, name in sorted(imported(ast.parse(file.read_text(encoding="utf-8")))):
            libraries = {_plain(one) for one in sources.get(name, ())}
            if libraries and not libraries & named:
                found.append(f"{file.relative_to(root)}:{line}: {name} is not named in pyproject.toml")
    return found


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


if __name__ == "__main__":
    complaints = check(ROOT / "src" / "stoker")
    complaints += undeclared(ROOT, ("src", "tests", "scripts", "benchmarks", "lab", "examples"))
    print("\n".join(complaints), end="\n" if complaints else "")
    sys.exit(1 if complaints else 0)
