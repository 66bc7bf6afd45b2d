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
from postroad.admin import PostroadError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130  # 128 + SIGINT, what shells report for a program stopped by Ctrl-C.


class LazyCommand(NamedTuple):
    """Where a command lives, as ``module:attribute``, and its one line in the list."""

    target: str
    summary: str

    def load(self) -> click.Command:
        """Import the module and return the command."""
        module, _, attribute = self.target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


class LazyGroup(click.Group):
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
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.table[name].summary) for name in sorted(self.table)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        wanted = args[0]
        if wanted not in self.table and not wanted.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {wanted!r}.{self._suggestion(wanted)}")
        return super().resolve_command(ctx, args)

    def _suggestion(self, wanted: str) -> str:
        import difflib

        close = difflib.get_close_matches(wanted, self.table, n=1)
        return f" Did you mean {close[0]!r}?" if close else ""


COMMANDS = {
    "bridge": LazyCommand(
        "postroad.cli.bridge:bridge", "Carry the mail of a node, as a process of its own."
    ),
    "certs": LazyCommand(
        "postroad.cli.certs:certs", "Make and inspect certificates for development clusters."
    ),
    "flow": LazyCommand(
        "postroad.cli.flows:flow", "Look at the flows of a node, and help those in need."
    ),
    "mail": LazyCommand(
        "postroad.cli.mail:mail", "Look into the mail of a node, and decide about dead letters."
    ),
    "pipeline": LazyCommand(
        "postroad.cli.pipeline:pipeline", "Run pipelines whose every segment is accounted for."
    ),
    "services": LazyCommand("postroad.cli.services:services", "Look at the services of a program."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
@click.version_option(__version__, prog_name="postroad", message="%(prog)s %(version)s")
def postroad() -> None:
    """Messaging for Python clusters.

    Every command explains itself, with an example: postroad COMMAND --help

    \b
    Example: certificates for two nodes
      postroad certs init
      postroad certs issue n1 n2
    """


def main() -> None:
    """Run the command of this process's arguments and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    0 done, 1 failed, 2 wrong usage, 3 done but for dead letters, 130 Ctrl-C.
    """
    try:
        result = postroad.main(list(arguments), prog_name="postroad", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except PostroadError as error:
        click.echo(f"postroad: {error}", err=True)
        return EXIT_FAILED
    except click.Abort as error:
        # click turns an end of input at a prompt into the same exception.
        return EXIT_FAILED if isinstance(error.__cause__, EOFError) else EXIT_INTERRUPTED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return result if isinstance(result, int) else EXIT_OK
