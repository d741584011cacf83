"""What `stoker top` shows over its view: a text, a question, a line to change."""

from __future__ import annotations

from typing import ClassVar

from rich.markup import escape
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from stoker.cli.text import one_line


class Page(ModalScreen[None]):
    """A text over the view, which any of its keys closes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "dismiss", "Back"),
    ]
    CSS = """
    Page { align: center middle; }
    Page > VerticalScroll { width: 90%; height: auto; max-height: 90%; border: round $primary; padding: 0 1; }
    """

    def __init__(self, title: str, text: Text) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """A scrolling box."""
        with VerticalScroll() as box:
            box.border_title = escape(one_line(self._title))
            yield Static(self._text)


class Question(ModalScreen[bool]):
    """A question that `y` affirms; everything else declines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
    ]
    CSS = """
    Question { align: center middle; }
    Question > Static { width: auto; max-width: 90%; border: round $warning; padding: 0 1; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """A box with the question."""
        yield Static(Text(f"{one_line(self._text, 400)} (y/n)"))

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(yes)


class Entry(ModalScreen[str | None]):
    """A line to change; escape leaves it as it was."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Back")]
    CSS = """
    Entry { align: center middle; }
    Entry > Vertical { width: 90%; height: auto; border: round $primary; padding: 0 1; }
    """

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """A box with the line."""
        with Vertical() as box:
            box.border_title = escape(one_line(self._title))
            yield Input(value=self._text)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with what was written."""
        event.stop()
        self.dismiss(event.value)
