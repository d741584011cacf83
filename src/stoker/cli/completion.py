"""`stoker completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from stoker.cli.text import say

SHELLS = ("bash", "zsh", "fish")

WHERE = """\b
Where it goes:
  bash  echo 'eval "$(stoker completion bash)"' >> ~/.bashrc
  zsh   echo 'eval "$(stoker completion zsh)"' >> ~/.zshrc
  fish  stoker completion fish > ~/.config/fish/completions/stoker.fish
"""


@click.command(epilog=WHERE)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete `stoker`."""
    from stoker.cli.command import stoker

    found = get_completion_class(shell)
    assert found is not None, "click knows these shells"
    script = found(stoker, {}, "stoker", "_STOKER_COMPLETE").source()
    say(script)
