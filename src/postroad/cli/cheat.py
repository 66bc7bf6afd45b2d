"""`postroad cheat`: examples of commands, by topic."""

from __future__ import annotations

from collections.abc import Iterator

import click

from postroad.admin.errors import NotFound, nearest
from postroad.admin.operations import OPERATIONS

from .helping import Command, argument
from .main import COMMANDS
from .screen import strong
from .spellings import GROUPS, SPELLINGS


@click.command(cls=Command)
@argument("topic", required=False, help="A group of commands, as queue; all are listed without.")
def cheat(topic: str | None) -> None:
    """Show examples of commands by topic.

    \b
    Example:
      postroad cheat queue
    """
    if topic is None:
        longest = max(map(len, GROUPS))
        for name in sorted(GROUPS):
            click.echo(f"{name.ljust(longest)}  {COMMANDS[name].summary}")
        return
    if topic not in GROUPS:
        raise NotFound(f"there are no examples of {topic!r}{nearest(topic, GROUPS)}")
    click.echo("\n\n".join(_examples(topic)))


def _examples(noun: str) -> Iterator[str]:
    for name, operation in OPERATIONS.items():
        if operation.noun == noun:
            lines = SPELLINGS[name].example.splitlines()
            shown = "\n".join(strong(f"postroad {it}") for it in lines)
            yield f"# {operation.summary}\n{shown}"
