"""The documentation and the code speak of the same things: names, options, settings, errors, links."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import click
import pytest

import stoker
from scripts import doc_tables
from stoker import settings
from stoker.cli import COMMANDS
from stoker.engines.base import FACETS, Engine, Feature
from stoker.model import errors
from stoker.model.job import LEASE, Status
from stoker.model.time import SECOND
from stoker.options import OPTIONS
from stoker.registry import POLICY

ROOT = doc_tables.ROOT
DOCS = ROOT / "docs"
PAGES = sorted({*ROOT.glob("*.md"), *doc_tables.pages()})
LONGEST = 200
AVOIDED = re.compile(r"\b(?:actors?|n?acks?|n?acked|heartbeats?|DLQ)\b", re.IGNORECASE)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# --- generated parts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", doc_tables.pages(), ids=name_of)
def test_generated_parts_are_up_to_date(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert page == doc_tables.renewed(page), "run: .venv/bin/python scripts/doc_tables.py"


def test_every_generated_part_has_a_place() -> None:
    placed = {part[1] for path in doc_tables.pages() for part in doc_tables.PART.findall(path.read_text("utf-8"))}
    assert {part for part in placed if not part.startswith("help")} == set(doc_tables.PARTS)


# --- nothing is left out --------------------------------------------------------------------------------------------

PAGES_OF_NAMES = ("api", "tasks", "jobs")


def test_every_public_name_is_a_heading_of_the_reference() -> None:
    pages = "".join(read(f"reference/{name}.md") for name in PAGES_OF_NAMES)
    headings = " ".join(re.findall(r"^## (.+)$", pages, re.MULTILINE))
    assert {*stoker.__all__, *stoker.ON_USE} <= set(re.findall(r"\w+", headings))


@pytest.mark.parametrize("option", [*OPTIONS, *POLICY, "name", "replace", "tx"])
def test_every_option_of_a_task_is_a_row_of_the_reference(option: str) -> None:
    assert re.search(rf"^\| [^|]*`{option}`", read("reference/tasks.md"), re.MULTILINE)


def test_every_keyword_and_method_of_the_app_is_in_the_reference() -> None:
    section = read("reference/api.md").partition("## Worker")[0]
    keywords = [
        name
        for name, parameter in inspect.signature(stoker.Stoker.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    missing = [name for name in keywords if f"`{name}`" not in section]
    assert not missing


SIGNATURE = re.compile(r"`(?:await )?(\w+)\(([^`]*)\)`")
OWNERS = {
    "reference/api.md": stoker.Stoker,
    "reference/jobs.md": stoker.JobHandle,
    "reference/outbox.md": stoker.Outbox,
}


@pytest.mark.parametrize("page", OWNERS)
def test_a_row_of_the_reference_names_the_keywords_of_its_method(page: str) -> None:
    first_cells = re.findall(r"^\| ([^|]*) \|", read(page), re.MULTILINE)
    rows = [(name, arguments) for cell in first_cells for name, arguments in SIGNATURE.findall(cell)]
    methods = {name: getattr(OWNERS[page], name) for name, _ in rows if callable(getattr(OWNERS[page], name, None))}
    assert len(methods) >= 3
    for name, arguments in rows:
        if name in methods:
            parameters = inspect.signature(methods[name]).parameters
            known = {one for one, of in parameters.items() if of.kind is not of.VAR_KEYWORD}
            free = any(of.kind is of.VAR_KEYWORD for of in parameters.values())
            assert free or set(re.findall(r"(\w+)=", arguments)) <= known, name
            if "…" not in arguments:
                optional = {one for one in known if parameters[one].default is not inspect.Parameter.empty}
                assert optional - {"instead"} <= set(re.findall(r"\w+", arguments)), (
                    name
                )  # that one is for run's own use


@pytest.mark.parametrize("room", ["WorkerSettings", "TimelineSettings", "RetentionSettings"])
def test_every_setting_and_its_variable_is_in_the_reference(room: str) -> None:
    page = read("reference/settings.md")
    for field in dataclasses.fields(getattr(settings, room)):
        assert f"| `{field.name}` | `STOKER_{field.name.upper()}` |" in page


def test_every_variable_that_the_code_reads_by_name_is_in_the_reference() -> None:
    source = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    named = {name for text in source for name in re.findall(r"\"(STOKER_[A-Z]\w*)\"", text)}
    assert "STOKER_URL" in named
    assert {name for name in named if f"`{name}`" not in read("reference/settings.md")} == set()


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("docs/explanation/guarantees.md", "one lease, {} seconds long"),
        ("docs/howto/postgres.md", "after its lease**, {} seconds"),
        ("docs/howto/time-limits.md", "longer than the lease ({} s)"),
        ("README.md", "after its lease, {} s"),
    ],
)
def test_pages_that_name_the_lease_name_the_default(page: str, words: str) -> None:
    assert words.format(LEASE // SECOND) in (ROOT / page).read_text(encoding="utf-8")


def test_there_are_no_other_settings() -> None:
    found = {
        name
        for name, value in vars(settings).items()
        if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == settings.__name__
    }
    assert found == {"WorkerSettings", "TimelineSettings", "RetentionSettings"}


PAGES_OF_COMMANDS = (
    *(
        "cli",
        "operator-commands",
        "status-commands",
        "worker-commands",
        "archive-commands",
        "group-commands",
        "steering-commands",
    ),
    *("top", "dashboard", "doctor", "outbox-commands"),
)


def test_every_option_of_the_command_line_is_in_the_reference() -> None:
    page = "".join(read(f"reference/{name}.md") for name in PAGES_OF_COMMANDS)
    for name, (where, _) in COMMANDS.items():
        module, _, attribute = where.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        assert f"## stoker {name}" in page
        for one in [command, *(command.commands.values() if isinstance(command, click.Group) else ())]:
            assert one.name in page
            for parameter in one.params:
                if isinstance(parameter, click.Option):
                    assert all(option in page for option in parameter.opts), parameter.opts


def test_every_error_is_a_row_of_the_reference() -> None:
    rows = set(re.findall(r"^\| `(\w+)`", read("reference/errors.md"), re.MULTILINE))
    known = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.StokerError) and value is not errors.StokerError
    }
    assert known <= rows
    assert "`StokerError`" in read("reference/errors.md")


def test_every_method_of_the_contract_is_in_the_reference() -> None:
    page = read("reference/engine-contract.md")
    names = {(facet, name) for facet, contract in FACETS.items() for name in vars(contract) if not name.startswith("_")}
    assert [one for one in sorted(names) if f"`{one[1]}" not in page.partition(f"`engine.{one[0]}`")[2]] == []
    own = set(vars(Engine)) - set(FACETS)
    assert [name for name in sorted(own) if not name.startswith("_") and f"`{name}" not in page] == []


def test_every_guarantee_and_every_engine_is_in_the_table() -> None:
    page = read("reference/engines.md")
    assert all(guarantee.name in page and guarantee.value in page for guarantee in Feature)
    assert all(f"`{engine.name}://`" in page for engine in doc_tables.engines())


def test_every_status_is_in_the_diagram() -> None:
    page = read("explanation/a-jobs-journey.md")
    assert all(re.search(rf"--> {status}$|{status} -->", page, re.MULTILINE) for status in Status)


# --- pages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_is_short_enough_to_be_read(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    for link in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        found = (path.parent / target).resolve() if target else path
        assert found.is_file(), link
        if anchor:
            assert anchor in anchors(found), link


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_pages_use_the_words_of_the_glossary(path: Path) -> None:
    if path.name != "glossary.md":
        assert not AVOIDED.findall(CODE.sub("", path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("shelf", ["tutorial", "howto", "reference", "explanation"])
def test_a_shelf_lists_its_pages(shelf: str) -> None:
    listed = set(LINK.findall((DOCS / shelf / "README.md").read_text(encoding="utf-8")))
    assert {page.name for page in (DOCS / shelf).glob("*.md")} - {"README.md"} <= listed
