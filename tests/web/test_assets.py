"""Vendored files are what their makers published, the style keeps its promises, and both stay small."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
from pathlib import Path

import pytest

from stoker.web.assets import FOLDER, files

BOM = json.loads((Path(__file__).parents[2] / "sbom.cdx.json").read_text(encoding="utf-8"))
SUMS = {
    file["name"].removeprefix("stoker/web/static/"): file["hashes"][0]["content"]
    for component in BOM["components"]
    for file in component["components"]
}
"""The files of others that the wheel contains, and names in its bill of materials."""


@pytest.mark.spec("ASSET-01")
def test_vendored_files_are_as_published_and_come_with_licences() -> None:
    for name, wanted in SUMS.items():
        assert hashlib.sha256(files()[name]).hexdigest() == wanted, name
    others = {name for name in files() if name.startswith(("vendor/", "fonts/")) and not name.endswith(".LICENSE")}
    assert others == set(SUMS)
    for licence in ("vendor/htmx", "vendor/uPlot", "fonts/inter", "fonts/jetbrains-mono"):
        assert len(files()[f"{licence}.LICENSE"]) > 500


@pytest.mark.spec("ASSET-02")
def test_files_stay_small() -> None:
    size = {name: len(gzip.compress(content)) for name, content in files().items()}
    own = sum(size[name] for name in ("stoker.css", "stoker.js", "chart.js"))
    script = sum(size[name] for name in SUMS if name.endswith(".js"))
    fonts = sum(len(content) for name, content in files().items() if name.endswith(".woff2"))
    assert own < 16_000
    assert script < 45_000
    assert fonts < 91_000


# --- colours --------------------------------------------------------------------------------------------------------

CSS = (FOLDER / "stoker.css").read_text(encoding="utf-8")
TOKENS = re.findall(r"--([\w-]+):\s*light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)\s*;", CSS)
THEMES = {"light": {name: light for name, light, _ in TOKENS}, "dark": {name: dark for name, _, dark in TOKENS}}
STATUSES = ("running", "retrying", "done", "dead")
TEXTS = [
    *(("ink", ground, 7.0) for ground in ("bg", "surface", "sunken", "raised", "selected")),
    *((ink, ground, 4.5) for ink in ("ink-2", "ink-3") for ground in ("bg", "surface", "sunken", "hover", "selected")),
    *(("accent", ground, 4.5) for ground in ("bg", "surface")),
    ("on-solid", "solid", 7.0),
    ("on-danger", "danger", 4.5),
    ("ink-2", "chip", 4.5),
    *((name, ground, 4.5) for name in STATUSES for ground in ("surface", "bg", "hover", f"{name}-tint")),
    *((ink, f"{name}-tint", 4.5) for ink in ("ink", "ink-2") for name in STATUSES),
]
MARKS = [
    *((f"{name}-fill", "surface", 3.0) for name in (*STATUSES, "neutral")),
    ("focus", "bg", 3.0),
    ("accent-fill", "bg", 3.0),
]
SIGHTS = {  # Machado et al. 2009, in full, on linear RGB
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def linear(color: str) -> list[float]:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def contrast(one: str, other: str) -> float:
    light = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear(one), linear(other)))
    return (light[1] + 0.05) / (light[0] + 0.05)


def lab(color: str, sight: str) -> tuple[float, float, float]:
    seen = [min(max(sum(a * b for a, b in zip(row, linear(color), strict=True)), 0), 1) for row in SIGHTS[sight]]
    white = (0.95047, 1.0, 1.08883)
    rows = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
    x, y, z = (sum(a * b for a, b in zip(row, seen, strict=True)) / top for row, top in zip(rows, white, strict=True))
    fx, fy, fz = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.spec("ASSET-03")
@pytest.mark.parametrize("theme", THEMES)
def test_every_text_and_mark_stands_out(theme: str) -> None:
    colors = THEMES[theme]
    low = {pair: contrast(colors[pair[0]], colors[pair[1]]) for pair in (*TEXTS, *MARKS)}
    assert {pair: found for pair, found in low.items() if found < pair[2]} == {}


@pytest.mark.spec("ASSET-03")
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("sight", SIGHTS)
def test_statuses_differ_for_every_eye(theme: str, sight: str) -> None:
    fills = [THEMES[theme][f"{name}-fill"] for name in (*STATUSES, "neutral")]
    near = [math.dist(lab(a, sight), lab(b, sight)) for at, a in enumerate(fills) for b in fills[at + 1 :]]
    assert min(near) >= 15


@pytest.mark.spec("ASSET-03")
def test_colours_stand_in_the_tokens_alone() -> None:
    tokens, rest = CSS.split("/* ---- 2. Base", 1)
    assert "light-dark(#" in tokens
    strays = [color for color in re.findall(r"#[0-9a-f]{3,8}\b", rest) if color not in {"#1c1a1710", "#0000", "#000"}]
    assert strays == ["#1c1a1759", "#000000a6"]  # the veil behind a dialog
