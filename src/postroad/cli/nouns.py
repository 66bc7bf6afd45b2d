"""Groups of commands made of operations: one for each noun, found as an attribute by its name."""

from __future__ import annotations

from collections.abc import Mapping

import click

from postroad.admin.operations import OPERATIONS, Operation

from .main import COMMANDS, LazyCommand, LazyGroup
from .spellings import GROUPS
from .verbs import make_verb

_BESIDES: dict[str, dict[str, LazyCommand]] = {
    "bridge": {
        "run": LazyCommand(
            "postroad.cli.bridge:run", "Carry the mail of a node, as a process of its own."
        )
    },
}
"""Verbs that are no operations of a node."""


class NounGroup(LazyGroup):
    """The operations on one thing, and what else can be done with it.

    Args:
        besides: verbs that are no operations; they win over operations of the same name.
        default: the verb that is meant when there is none.
    """

    def __init__(
        self,
        name: str,
        *,
        operations: Mapping[str, Operation],
        besides: Mapping[str, LazyCommand],
        default: str | None,
        help: str,
    ) -> None:
        made = {it.verb: LazyCommand("", it.summary) for it in operations.values()}
        super().__init__(name=name, table={**made, **besides}, help=help)
        self._operations = operations
        self._besides = besides
        self._default = default

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        operation = self._operations.get(cmd_name)
        if operation is None or cmd_name in self._besides:
            return super().get_command(ctx, cmd_name)
        return make_verb(operation)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self._default is not None and args and not self._is_verb(args[0]):
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def _is_verb(self, word: str) -> bool:
        from .synonyms import find_meant

        # Whoever says another word for a verb gets to know it.
        return word in ("--help", "-h") or find_meant(word, self.table) is not None


def make_group(noun: str) -> NounGroup:
    """The group of a noun."""
    title, default = GROUPS[noun]
    examples = title.strip()
    return NounGroup(
        noun,
        operations={it.verb: it for it in OPERATIONS.values() if it.noun == noun},
        besides=_besides(noun),
        default=default,
        help=f"{COMMANDS[noun].summary}\n\n{examples}",
    )


def _besides(noun: str) -> Mapping[str, LazyCommand]:
    if noun == "node":
        from .node import NODE_COMMANDS

        return NODE_COMMANDS
    if noun == "pipeline":
        return _pipeline_commands()
    return _BESIDES.get(noun, {})


def _pipeline_commands() -> dict[str, LazyCommand]:
    """What is done with the file of a job, whether a node knows of it or not."""
    from .pipeline import pipeline

    return {
        name: LazyCommand(f"postroad.cli.pipeline:{name}", command.get_short_help_str(100))
        for name, command in pipeline.commands.items()
    }


def __getattr__(name: str) -> NounGroup:
    if name not in GROUPS:
        raise AttributeError(f"there is no group {name!r}")
    return make_group(name)
