"""Every `stoker …` that a page names exists: command, subcommand and options, in blocks and in running text."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import click
import pytest

from stoker.cli import ALIASES, COMMANDS
from tests.docs.test_blocks import PAGES, ROOT

BLOCK = re.compile(r"^```(?!text|python)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(stoker [^`]+)`")
LINE = re.compile(r"^(?:\$ |\S*/)?(stoker [a-z].*)$|\$\((stoker [^|)]*)", re.MULTILINE)
OPTION = re.compile(r"`[^`\n]*?(?<![\w-])(--[a-z][a-z-]*)[^`\n]*`")
OF_OTHERS = {
    "--serve",
    "--campaign",
    "--init",
    "--time",
    "--stoker-app",
    "--stoker-seed",
    "--engine",
    "--store",
    "--lull",
    "--list",
    "--bug",
} | {
    *("--autoscale", "--burst", "--concurrency", "--max-tasks-per-child", "--pool", "--watch", "--with-scheduler"),
}
"""Options of our scripts, of docker and of pytest that pages name; and of the systems that the guides come from."""
EVERYWHERE = {"-A", "--app", "-h", "--help", "--version"}


def commands(page: str) -> list[str]:
    """What of a page calls Stoker; `…`, redirections and what follows a pipe are cut off."""
    found = [one or inner for block in BLOCK.findall(page) for one, inner in LINE.findall(block)]
    found += INLINE.findall(_text(page))
    return [re.split(r"[|;&<>…]", line)[0] for line in found]


def _text(page: str) -> str:
    """A page without its blocks."""
    return re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)


def wrong(line: str) -> str | None:
    """What a line names and Stoker does not have."""
    words = shlex.split(line, comments=True)[1:]
    while words and words[0] in EVERYWHERE:
        words = words[2:]
    if not words:
        return None
    words = [*ALIASES.get(words[0], (words[0],)), *words[1:]]
    if words[0] not in COMMANDS:
        return words[0]
    module, _, attribute = COMMANDS[words[0]][0].partition(":")
    command: click.Command = getattr(importlib.import_module(module), attribute)
    rest = words[1:]
    known = _options(command)
    if isinstance(command, click.Group) and rest and re.fullmatch(r"[a-z][a-z-]*", rest[0]):
        if rest[0] not in command.commands:
            return f"{words[0]} {rest[0]}"
        known |= _options(command.commands[rest[0]])
        rest = rest[1:]
    named = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    return next((one for one in named if one not in known and not _filter(one)), None)


def every_option() -> set[str]:
    """The options of all commands."""
    loaded = [(where.partition(":")[0], where.partition(":")[2]) for where, _ in COMMANDS.values()]
    found = [getattr(importlib.import_module(module), attribute) for module, attribute in loaded]
    below = [one for command in found if isinstance(command, click.Group) for one in command.commands.values()]
    return set().union(*map(_options, [*found, *below]))


def _options(command: click.Command) -> set[str]:
    found = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return found | EVERYWHERE


def _filter(word: str) -> bool:
    """`-kind:plan` is a filter word."""
    return re.match(r"-\w+:", word) is not None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_names_only_commands_and_options_that_exist(path: Path) -> None:
    lines = commands(path.read_text(encoding="utf-8"))
    assert [line for line in lines if wrong(line)] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_an_option_that_a_page_names_alone_exists(path: Path) -> None:
    named = set(OPTION.findall(_text(path.read_text(encoding="utf-8"))))
    assert named - every_option() - OF_OTHERS == set()


def test_unknown_commands_and_options_are_found() -> None:
    page = "Use `stoker work --order strict`.\n\n```sh\nstoker serv app:jobs  # typo\nstoker list is:dead | wc\n```\n"
    assert [wrong(line) for line in commands(page)] == ["serv", None, "--order"]
    assert wrong("stoker queues halt mail") == "queues halt"
    assert OPTION.findall("also with `--order strict` or `--strict`") == ["--order", "--strict"]
