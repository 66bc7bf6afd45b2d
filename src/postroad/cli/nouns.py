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
    "flow": {
        "export": LazyCommand(
            "postroad.cli.histories:export", "Write recorded histories of flows into a file."
        ),
        "verify": LazyCommand(
            "postroad.cli.histories:verify", "Replay exported flows with the code of today."
        ),
    },
}
"""Verbs that are no operations of a node."""
_JOB_FILES = (".toml", ".json")


class NounGroup(LazyGroup):
    """The operations on one thing, and what else can be done with it.

    Args:
        besides: verbs that are no operations; they win over operations of the same name.
        default: the verb that is meant when there is none.
        old_verbs: what verbs were called before.
    """

    def __init__(
        self,
        name: str,
        *,
        operations: Mapping[str, Operation],
        besides: Mapping[str, LazyCommand],
        default: str | None,
        help: str,
        old_verbs: Mapping[str, str] | None = None,
    ) -> None:
        made = {it.verb: LazyCommand("", it.summary) for it in operations.values()}
        super().__init__(name=name, table={**made, **besides}, help=help)
        self._operations = operations
        self._besides = besides
        self._default = default
        self._old_verbs = old_verbs or {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verb, *rest = args
        verb = self._old_verbs.get(verb, verb)
        operation = self._operations.get(verb)
        if operation is not None and verb in self._besides and _is_of_node(rest):
            return verb, make_verb(operation), rest
        return super().resolve_command(ctx, [verb, *rest])

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


_OLD_NOUNS = {
    "pipeline": (
        "job",
        {"dead": "dead-letters", "graph": "explain", "replay": "retry", "status": "show"},
    ),
}
"""What nouns were called before, with their verbs."""


def _is_of_node(words: list[str]) -> bool:
    """Whether a job is named as a node knows it, and not by its file."""
    said = [it for it in words if not it.startswith("-")]
    is_help = any(it in ("-h", "--help") for it in words)
    return bool(said) and not is_help and not any(it.endswith(_JOB_FILES) for it in said)


def make_group(noun: str, old_verbs: Mapping[str, str] | None = None) -> NounGroup:
    """The group of a noun."""
    title, default = GROUPS[noun]
    examples = title.strip()
    return NounGroup(
        noun,
        operations={it.verb: it for it in OPERATIONS.values() if it.noun == noun},
        besides=_besides(noun),
        default=default,
        help=f"{COMMANDS[noun].summary}\n\n{examples}",
        old_verbs=old_verbs,
    )


def _besides(noun: str) -> Mapping[str, LazyCommand]:
    if noun == "node":
        from .node import NODE_COMMANDS

        return NODE_COMMANDS
    if noun == "job":
        return _job_commands()
    return _BESIDES.get(noun, {})


def _job_commands() -> dict[str, LazyCommand]:
    """What is done with the file of a job, whether a node knows of it or not."""
    from .job import job

    return {
        name: LazyCommand(
            f"postroad.cli.job:{name.replace('-', '_')}", command.get_short_help_str(100)
        )
        for name, command in job.commands.items()
    }


def __getattr__(name: str) -> NounGroup:
    if name in _OLD_NOUNS:
        return make_group(*_OLD_NOUNS[name])
    if name not in GROUPS:
        raise AttributeError(f"there is no group {name!r}")
    return make_group(name)
