"""Tables of the page on the command line: every command, and every verb of it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from postroad.cli.main import COMMANDS, LazyGroup

from .tables import table


def commands_tables() -> str:
    """A table for each section of `postroad --help`, and one for the verbs of each group."""
    sections = dict.fromkeys(it.section for it in COMMANDS.values())
    parts = []
    for section in sections:
        chosen = [(name, it) for name, it in sorted(COMMANDS.items()) if it.section == section]
        rows = [(f"`postroad {name}`", it.summary) for name, it in chosen]
        parts.append(f"### {section}\n\n{table(('command', 'what it does'), rows)}")
        for name, it in chosen:
            verbs = [*_verbs(it.load())]
            if verbs:
                listed = table((f"`postroad {name}`", "what it does"), verbs)
                parts.append(listed)
    return "\n\n".join(parts)


def _verbs(command: click.Command) -> Iterator[tuple[str, str]]:
    if not isinstance(command, click.Group):
        return
    context = click.Context(command)
    for verb in command.list_commands(context):
        if isinstance(command, LazyGroup):
            summary = command.table[verb].summary
        else:
            found = command.get_command(context, verb)
            assert found is not None
            summary = found.get_short_help_str(200)
        yield f"`{verb}`", summary.replace("|", "\\|")
