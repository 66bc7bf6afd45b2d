"""The `postroad` command: a table of commands, and what happens when one of them fails.

The console script calls `main`. Invariant: a command's module is imported only when that command
runs or its own help is asked for, so ``postroad --help`` stays fast however many there are.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from postroad._version import __version__

from .helping import Group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_UNHEALTHY = 4
EXIT_INTERRUPTED = 130  # 128 + SIGINT, what shells report for a program stopped by Ctrl-C.


class LazyCommand(NamedTuple):
    """Where a command lives, as ``module:attribute``, and its one line in the list."""

    target: str
    summary: str
    section: str = "Commands"

    def load(self) -> click.Command:
        """Import the module and return the command."""
        module, _, attribute = self.target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


class LazyGroup(Group):
    """A group that lists its commands from a table and imports them one at a time."""

    def __init__(self, *, table: Mapping[str, LazyCommand], **attributes: Any) -> None:
        super().__init__(**attributes)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.table.get(cmd_name)
        return None if entry is None else entry.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # As wide in every section, so that all summaries stand below one another.
        longest = max(map(len, self.table), default=0)
        for section in dict.fromkeys(it.section for it in self.table.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [
                        (name.ljust(longest), entry.summary)
                        for name, entry in sorted(self.table.items())
                        if entry.section == section
                    ]
                )


_NODES, _WORK, _LOOK, _TOOLS = "Nodes", "Work", "Observe", "Tools"


def _noun(name: str, summary: str, section: str) -> LazyCommand:
    """A group made of the operations on one thing."""
    return LazyCommand(f"postroad.cli.nouns:{name}", summary, section)


COMMANDS = {
    "cluster": _noun("cluster", "Members of the cluster, and how they see one another.", _NODES),
    "certs": LazyCommand(
        "postroad.cli.certs:certs",
        "Make and inspect certificates for development clusters.",
        _NODES,
    ),
    "context": LazyCommand(
        "postroad.cli.contexts:context",
        "Save where nodes are, and switch between them.",
        _NODES,
    ),
    "config": LazyCommand(
        "postroad.cli.config:config", "Show, check and explain the configuration of a node.", _NODES
    ),
    "dev": LazyCommand(
        "postroad.cli.dev:dev", "Run a program here, and again whenever it is saved.", _NODES
    ),
    "new": LazyCommand("postroad.cli.new:new", "Write a small project that works.", _NODES),
    "node": _noun("node", "Run a node; look at it, drain it, stop it.", _NODES),
    "bridge": _noun("bridge", "What carries durable messages to other nodes.", _WORK),
    "call": LazyCommand("postroad.cli.calling:call", "Call an action of a service.", _WORK),
    "cells": _noun("cells", "Cells, their domains, and the routes between them.", _WORK),
    "dlq": _noun("dlq", "Dead letters: inspect, retry or drop them.", _WORK),
    "emit": LazyCommand("postroad.cli.calling:emit", "Emit an event.", _WORK),
    "flow": _noun("flow", "Flows: inspect them, and help those that are stuck.", _WORK),
    "job": _noun("job", "Run jobs that account for every segment.", _WORK),
    "queue": _noun("queue", "Queues of durable messages.", _WORK),
    "service": _noun("service", "Services, their actions and events.", _WORK),
    "check": LazyCommand(
        "postroad.cli.checking:check", "Report in one line whether a node is healthy.", _LOOK
    ),
    "events": LazyCommand("postroad.cli.events:events", "Follow changes as they happen.", _LOOK),
    "graph": LazyCommand(
        "postroad.cli.graph:graph", "Draw everything and how it is connected.", _LOOK
    ),
    "logs": LazyCommand("postroad.cli.events:logs", "Show the log of a node.", _LOOK),
    "search": _noun("search", "Find anything by its id or name.", _LOOK),
    "top": LazyCommand("postroad.cli.top:top", "Watch a node at work.", _LOOK),
    "trace": _noun("trace", "Follow a request from hop to hop.", _LOOK),
    "bench": LazyCommand("postroad.cli.bench:bench", "Measure how fast nodes are here.", _TOOLS),
    "cheat": LazyCommand("postroad.cli.cheat:cheat", "Show examples of commands by topic.", _TOOLS),
    "completion": LazyCommand(
        "postroad.cli.completion:completion", "Print the completion script for a shell.", _TOOLS
    ),
    "doctor": LazyCommand(
        "postroad.cli.doctor:doctor", "Look for what is wrong on this machine.", _TOOLS
    ),
    "errors": LazyCommand(
        "postroad.cli.errors:errors", "Explain an error, or list them all.", _TOOLS
    ),
    "export": LazyCommand(
        "postroad.cli.export:export",
        "Describe services, queues and operations for other programs.",
        _TOOLS,
    ),
    "schema": LazyCommand(
        "postroad.cli.schema:schema",
        "Compare the types of queues of two versions of a program.",
        _TOOLS,
    ),
    "shell": LazyCommand(
        "postroad.cli.shell:shell", "Work with a node interactively, with completion.", _TOOLS
    ),
}


_OLD_NAMES = {"pipeline": _noun("pipeline", "The former name of `job`.", _WORK)}
"""Commands under their former names, which work until the next release and are not listed."""


class _Postroad(LazyGroup):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in _OLD_NAMES:
            return args[0], _OLD_NAMES[args[0]].load(), args[1:]
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Postroad, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="postroad", message="%(prog)s %(version)s")
def postroad() -> None:
    """Messaging for Python clusters.

    Every command explains itself, with an example: postroad COMMAND --help

    \b
    Example: a node to play with, and a look at it
      postroad dev
      postroad top
    """


def main() -> None:
    """Run the command of this process's arguments and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    0 done, 1 failed, 2 wrong usage, 3 not found, 4 unhealthy, 130 Ctrl-C.
    """
    try:
        result = postroad.main(list(arguments), prog_name="postroad", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort as error:
        # click turns an end of input at a prompt into the same exception.
        return EXIT_FAILED if isinstance(error.__cause__, EOFError) else EXIT_INTERRUPTED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        # Imported late: whoever only asks for help needs no node.
        from .failures import tell_failure

        return tell_failure(error)
    return result if isinstance(result, int) else EXIT_OK
