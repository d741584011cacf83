"""The site: every page is on it, under a title, with its Markdown beside it."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest

import stoker

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_script", ROOT / "scripts" / "site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def built(site: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly into a folder of its own: a broken link is an error."""
    folder = tmp_path_factory.mktemp("build")
    assert site.main(["--into", str(folder)]) == 0
    return folder / "site"


def test_every_page_of_the_documentation_is_on_the_site(built: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT)
        place = name.parent if name.name == "README.md" else name.with_suffix("")
        title = re.escape(page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition("`")[0])
        html = (built / place / "index.html").read_text(encoding="utf-8")
        assert re.search(rf"<h1[^>]*>{title}".replace("'", "(?:'|’|&#x27;|&#39;)"), html), name
        assert (built / name).is_file(), name


def test_programs_find_every_page_of_the_shelves(built: Path, site: ModuleType) -> None:
    listed = re.findall(r"\]\(([^)]+)\)", (built / "llms.txt").read_text(encoding="utf-8"))
    assert all((built / file).is_file() for file in listed)
    shelves = {page for folder in site.SHELVES.values() for page in (ROOT / folder).glob("*.md")}
    pages = {str(page.relative_to(ROOT)) for page in shelves if page.name != "README.md"}
    assert pages <= set(listed)


def test_every_public_name_has_its_docstring_on_the_site(built: Path) -> None:
    html = (built / "docs/reference/python/index.html").read_text(encoding="utf-8")
    headings = set(re.findall(r'<h2 id="[^"]*">(\w+)', html))
    assert {*stoker.__all__, *stoker.ON_USE} <= headings


LINK = re.compile(r'(?:href|src)="?([^"\s>]+)')
ID = re.compile(r'id="?([^"\s>]+)')


def test_every_link_of_the_site_leads_to_a_file_and_a_place_in_it(built: Path) -> None:
    """The generator checks links between pages; those to programs and data it takes as they are."""
    pages = {page: page.read_text(encoding="utf-8") for page in built.rglob("index.html")}
    places = {page: {unquote(one) for one in ID.findall(html)} for page, html in pages.items()}
    followed, dead = 0, set()
    for page, html in pages.items():
        for link in set(LINK.findall(html)):
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            file = (page.parent / unquote(url.path)).resolve() if url.path else page
            file = file / "index.html" if file.is_dir() else file
            followed += 1
            if not file.is_file() or (file in places and unquote(url.fragment) not in {"", *places[file]}):
                dead.add(f"{page.relative_to(built)}: {link}")
    assert followed > 1_000
    assert 'href="../openapi.json"' in pages[built / "docs/reference/rest-api/index.html"]
    assert dead == set()


def test_a_search_finds_pages_and_not_the_register_of_tests(built: Path) -> None:
    found = {item["location"] for item in json.loads((built / "search.json").read_text(encoding="utf-8"))["items"]}
    assert any(place.startswith("docs/howto/retries/") for place in found)
    assert not any(place.startswith("tests/") for place in found)
    assert (built / "tests/spec.md").read_text(encoding="utf-8").startswith("# ")
