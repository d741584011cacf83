"""Builds the documentation as a site: plain Markdown in, static pages out.

The pages are those of the repository, in their places, so that every link on them holds. Made from the code are the
page of all public names (docstrings), the OpenAPI document and, in the pages themselves, the tables of commands and
settings. Beside each page lies its Markdown, and `llms.txt` lists them for programs that read.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import inspect
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import stoker
from stoker.web.api.document import document as openapi

ROOT = Path(__file__).resolve().parent.parent
BESIDE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "RECIPES.md", "SECURITY.md", "benchmarks/README.md")
"""Pages outside of `docs/` that pages link to."""
SHELVES = {
    "Tutorial": "docs/tutorial",
    "Guides": "docs/guides",
    "How-to": "docs/howto",
    "Reference": "docs/reference",
    "Explanation": "docs/explanation",
}
CONTRIBUTORS = "For contributors"
"""A group of any shelf whose pages are not in its tab but under *Project*."""
ENTRY = re.compile(r"^(?:## (.+)|(?:-|\d+\.) \[([^\]]+)\]\(([^)#]+)\)(?::\s*((?:.|\n(?=  ))*))?)$", re.MULTILINE)


FILE = re.compile(r"^(```\w+ )file=(\S+)$", re.MULTILINE)
"""The name of a file above its text; the generator shows it as a title."""
OUTPUT = re.compile(r"^```text output$", re.MULTILINE)
"""What the program above it prints."""
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")

GIVEN = {
    "Context",
    "Draft",
    "FailedRun",
    "Job",
    "JobHandle",
    "Receipt",
    "Schedule",
    "Status",
    "Step",
    "Task",
    "Transition",
}
"""Classes that Stoker makes and users are given: how they are made is not for them."""
MODULES = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])")
"""Modules in front of the names of types."""
OPENAPI = "`/api/v1/openapi.json`"
"""On the site the document lies beside the page that names it."""
CODE = re.compile(r"^```python.*?^```|`[^`]+`", re.DOTALL | re.MULTILINE)
WIDTH = 92
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"
"""Before the register of tests, whose sentences would come before the pages that explain them."""


class Entry(NamedTuple):
    """A line of a shelf: the group it stands in, its title, its file from the root, and what it is about."""

    group: str
    title: str
    file: str
    about: str


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/docs", description="Build the documentation into build/site.")
    parser.add_argument("--into", type=Path, default=ROOT / "build", help="a folder for the pages and the site (build)")
    parser.add_argument("--serve", action="store_true", help="then serve it on 127.0.0.1, until Ctrl-C")
    parser.add_argument("--port", type=int, default=8000, help="port of --serve (8000)")
    given = parser.parse_args(arguments)
    pages, site = given.into / "docs", given.into / "site"
    for folder in (pages, site):
        shutil.rmtree(folder, ignore_errors=True)
    stage(pages)
    (given.into / "zensical.toml").write_text(configuration(), encoding="utf-8")
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--strict", "--clean"]
    built = subprocess.run([*command, "--config-file", str(given.into / "zensical.toml")], check=False)
    if built.returncode:
        print("stoker: the site has broken links or pages; they are named above", file=sys.stderr)
        return built.returncode
    write_for_programs(pages, site)
    print(f"stoker: {sum(1 for _ in site.rglob('*.html'))} pages in {site}")
    if given.serve:
        serve(site, given.port)
    return 0


def stage(pages: Path) -> None:
    """Copy the pages to where the generator reads them, with what is made from the code."""
    shutil.copytree(ROOT / "docs", pages / "docs")
    shutil.copytree(ROOT / "examples", pages / "examples", ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
    for name in (*BESIDE, "tests/spec.md"):
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, pages / name)
    for page in pages.rglob("*.md"):
        text = FILE.sub(r'\1title="\2"', page.read_text(encoding="utf-8"))
        page.write_text(OUTPUT.sub('```text title="Output"', text), encoding="utf-8")
    spec = pages / "tests/spec.md"
    spec.write_text(NOT_SEARCHED + spec.read_text(encoding="utf-8"), encoding="utf-8")
    bring_linked_files(pages)
    (pages / "docs/reference/python.md").write_text(names_page(), encoding="utf-8")
    (pages / "docs/reference/openapi.json").write_text(json.dumps(openapi(), indent=1), encoding="utf-8")
    rest = pages / "docs/reference/rest-api.md"
    text = rest.read_text(encoding="utf-8").replace(OPENAPI, f"[{OPENAPI}](openapi.json)", 1)
    rest.write_text(text, encoding="utf-8")


def bring_linked_files(pages: Path) -> None:
    """Copy the programs and data of the repository that pages link to."""
    for page in pages.rglob("*.md"):
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            place = (page.parent / link).resolve()
            source = ROOT / place.relative_to(pages.resolve())
            if source.is_file() and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, place)


def shelf(folder: str) -> Iterator[Entry]:
    """The pages of a shelf, as its README lists them."""
    group = ""
    for heading, title, file, about in ENTRY.findall((ROOT / folder / "README.md").read_text(encoding="utf-8")):
        if heading:
            group = heading
        else:
            yield Entry(group, title, str((ROOT / folder / file).resolve().relative_to(ROOT)), " ".join(about.split()))


def configuration() -> str:
    """What the generator is to do: the navigation is that of the shelves."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    nav: list[object] = [{"Home": "README.md"}]
    inside: list[object] = [{"How to contribute": "CONTRIBUTING.md"}, {"Recipes": "RECIPES.md"}]
    for name, folder in SHELVES.items():
        groups: dict[str, list[object]] = {"": [f"{folder}/README.md"]}
        for entry in shelf(folder):
            groups.setdefault(entry.group, []).append({entry.title: entry.file})
        if name == "Reference":
            groups["In code"].append({"Every public name": "docs/reference/python.md"})
        plain = groups.pop("")
        inside += groups.pop(CONTRIBUTORS, [])
        nav.append({name: [*plain, *({group: pages} for group, pages in groups.items())]})
    beside = {"Changelog": "CHANGELOG.md", "Security": "SECURITY.md", "Benchmarks": "benchmarks/README.md"}
    nav.append({"Project": [*({title: file} for title, file in beside.items()), {CONTRIBUTORS: inside}]})
    return f"""[project]
site_name = "Stoker"
site_description = {json.dumps(about["description"])}
docs_dir = "docs"
site_dir = "site"
nav = {toml(nav)}

[project.theme]
font = false
language = "en"
features = ["navigation.tabs", "navigation.sections", "navigation.top", "content.code.copy", "search.highlight"]
icon.logo = "lucide/flame"

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Dark"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Light"
"""


def toml(value: object) -> str:
    """Lists, tables of one line and texts, as TOML."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {toml(inner)}' for key, inner in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)


def names_page() -> str:
    """Every name that `stoker` exports, with its signature and docstring."""
    about = "This page is generated from the code; each name links to the page that explains it."
    parts = [f"# Every public name\n\nImport these names from `stoker`. {about}"]
    parts += [name_part(name) for name in sorted({*stoker.__all__, *stoker.ON_USE}, key=str.lower)]
    return "\n\n".join(parts) + "\n"


def name_part(name: str) -> str:
    found = getattr(stoker, name)
    there = [one for one in sections() if name in one.heading.split(", ")]
    page = there[0].page if len(there[0].heading) < WIDTH else "[errors](errors.md)"
    lines = [f"## {name}", "" if name in GIVEN else signature(name, found), document(found), f"Explained in {page}."]
    if inspect.isclass(found) and not issubclass(found, BaseException):
        known = {word for one in there for code in CODE.findall(one.text) for word in re.findall(r"\w+", code)}
        members = {
            member: value
            for member, value in inspect.getmembers(found)
            if member in known and not member.startswith("_") and document(value)
        }
        read = [f"| `{member}` | {cell(value)} |" for member, value in members.items() if is_attribute(value)]
        if read:
            lines.append("\n".join(["| Attribute | |", "|---|---|", *read]))
        for member, value in members.items():
            if not is_attribute(value):
                lines.append(f"### {name}.{member}\n\n{signature(member, value)}\n\n{document(value)}")
    return "\n\n".join(line for line in lines if line)


class Section(NamedTuple):
    """A section of the reference: a link to it, its heading and its text. What it does not mention is internal."""

    page: str
    heading: str
    text: str


@functools.cache
def sections() -> list[Section]:
    found = []
    for file in ("api.md", "tasks.md", "jobs.md", "outbox.md"):
        title, *parts = re.split(
            r"^## ", (ROOT / "docs/reference" / file).read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        for part in parts:
            heading, _, text = part.partition("\n")
            anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            name = title.partition("\n")[0].removeprefix("# ")
            found.append(Section(f"[{name}]({file}#{anchor})", heading, text))
    return found


def is_attribute(value: object) -> bool:
    return isinstance(value, property | functools.cached_property)


def cell(value: object) -> str:
    """The first paragraph of a docstring, for a table."""
    return " ".join(document(value).partition("\n\n")[0].split()).replace("|", "\\|")


def signature(name: str, value: object) -> str:
    """How it is called: without self, quotes and modules of types, a long one on several lines."""
    if not callable(value):
        return ""
    try:
        found = inspect.signature(value)
    except ValueError:  # written in C
        return ""
    given = [one for one in found.parameters.values() if one.name != "self"]
    parts, kinds = [parameter(one) for one in given], [one.kind for one in given]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    back = hint(" -> ", found.return_annotation)
    line = f"{name}({', '.join(parts)}){back}"
    if len(line) > WIDTH:
        line = f"{name}(\n" + "".join(f"    {one},\n" for one in parts) + f"){back}"
    return f"```python\n{line}\n```"


def parameter(one: inspect.Parameter) -> str:
    stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
    shown = one.default if isinstance(one.default, str) else MODULES.sub("", repr(one.default))
    text = repr(shown) if isinstance(one.default, str) else "..." if callable(one.default) else shown
    default = "" if one.default is one.empty else f" = {text}"
    return f"{stars}{one.name}{hint(': ', one.annotation)}{default}"


def hint(before: str, annotation: object) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    return before + MODULES.sub("", annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


def document(value: object) -> str:
    ours = is_attribute(value) or (callable(value) and str(getattr(value, "__module__", "")).startswith("stoker"))
    found = inspect.getdoc(value) if ours else None
    return (found or "").replace("\n#", "\n\\#")


def write_for_programs(pages: Path, site: Path) -> None:
    """Lay the Markdown of each page beside it, and list the pages in `llms.txt`."""
    for page in pages.rglob("*.md"):
        twin = site / page.relative_to(pages)
        twin.parent.mkdir(parents=True, exist_ok=True)
        twin.write_text(page.read_text(encoding="utf-8").removeprefix(NOT_SEARCHED), encoding="utf-8")
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["description"]
    lines = [f"# Stoker\n\n> {about}\n\n- [README](README.md): what it is, a first program, guarantees, install"]
    for name, folder in SHELVES.items():
        lines.append(f"\n## {name}\n")
        lines += [f"- [{one.title}]({one.file}): {one.about}" for one in shelf(folder)]
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def serve(site: Path, port: int) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"stoker: http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
