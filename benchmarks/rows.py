"""A row: one figure, what it is measured against, and the bar it has to clear.

`limit` is the bare loop's figure where there is a bare loop, else the bar itself. `ratio` says how the value stands to
it: for costs, the share of the limit's speed that is reached (1 is perfect, more is better); for latencies and for
figures that only have a bar, value / limit (less is better).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Of: TypeAlias = Literal["ratio", "value", "over"]


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure must reach: at least, or at most, so much. `over` is the distance from value to limit."""

    of: Of
    figure: float
    at_most: bool = False

    def met(self, reached: float) -> bool:
        return reached <= self.figure if self.at_most else reached >= self.figure

    def text(self, unit: str) -> str:
        sign = "≤" if self.at_most else "≥"
        if self.of == "ratio":
            return f"{sign} {self.figure:.2f}×" if self.at_most else f"{sign} {self.figure:.0%}"
        return f"{sign} {'+' if self.of == 'over' else ''}{self.figure:g} {unit}"


def at_least(figure: float, of: Of = "ratio") -> Bar:
    return Bar(of, figure)


def at_most(figure: float, of: Of = "value") -> Bar:
    return Bar(of, figure, at_most=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report. `note` is for readers and is not part of the JSON."""

    name: str
    unit: str
    value: float
    limit: float | None = None
    ratio: float | None = None
    bar: Bar | None = None
    over: float | None = None
    note: str = ""

    @property
    def passed(self) -> bool | None:
        """None when there is no bar."""
        if self.bar is None:
            return None
        reached = {"ratio": self.ratio, "value": self.value, "over": self.over}[self.bar.of]
        return reached is not None and self.bar.met(reached)

    def plain(self) -> dict[str, Any]:
        """The row as the JSON holds it."""
        return {
            "name": self.name,
            "unit": self.unit,
            "value": rounded(self.value),
            "limit": rounded(self.limit),
            "ratio": rounded(self.ratio),
        }


def absolute(name: str, unit: str, value: float, bar: Bar, note: str = "") -> Row:
    """A row that has only a bar to be measured against."""
    return Row(name, unit, value, bar.figure, value / bar.figure if bar.figure else None, bar, note=note)


def rounded(figure: float | None) -> float | None:
    """Five significant digits: more would pretend."""
    return None if figure is None else float(f"{figure:.5g}")


def as_json(rows: Iterable[Row]) -> str:
    """A list of rows: name, unit, value, limit, ratio."""
    return json.dumps([row.plain() for row in rows], indent=2, ensure_ascii=False) + "\n"
