"""What Stoker's own code never does: run stored data as code, or pass text to a shell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker

SOURCES = sorted(Path(stoker.__file__).parent.rglob("*.py"))
MODULES = frozenset({"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"})
CALLS = frozenset({"eval", "exec", "compile", "__import__"})
SHELLS = frozenset({"system", "popen", "getoutput", "getstatusoutput", "create_subprocess_shell", "subprocess_shell"})


def offences(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"import {one.name}" for one in node.names if one.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield f"from {node.module}"
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in CALLS:
                yield f"{called.id}()"
            if isinstance(called, ast.Attribute) and called.attr in SHELLS:
                yield f".{called.attr}()"
            yield from ("shell=" for one in node.keywords if one.arg == "shell")


@pytest.mark.spec("DATA-26")
def test_no_pickle_no_eval_and_no_shell() -> None:
    assert SOURCES
    found = [
        f"{path.name}:{offence}"
        for path in SOURCES
        for offence in offences(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from marshal import loads",
        "eval(x)",
        "exec(x)",
        "os.system(x)",
        "os.popen(x)",
        "subprocess.run(x, shell=True)",
        "asyncio.create_subprocess_shell(x)",
    ],
)
def test_the_rule_sees_what_it_forbids(text: str) -> None:
    assert len(list(offences(ast.parse(text)))) == 1
