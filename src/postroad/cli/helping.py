"""How commands explain themselves: what must be said, what may be said, and an example."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
Told = tuple[str, str]
_SENTENCE = 200


class Argument(click.Argument):
    """An argument with a line that tells what it is.

    Args:
        help: the line. Older versions of click know of none.
    """

    def __init__(self, declarations: list[str], *, help: str = "", **attributes: Any) -> None:
        super().__init__(declarations, **attributes)
        self.explanation = help


def argument(*declarations: str, **attributes: Any) -> Callable[[F], F]:
    """Give a command an argument that is explained."""
    return click.argument(*declarations, cls=Argument, **attributes)


class Command(click.Command):
    """A command whose help tells arguments and options apart."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[Told]] = {"Arguments": [], "Options": []}
        for title, told in self._explained(ctx):
            sections.setdefault(title, []).append(told)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _explained(self, ctx: click.Context) -> Iterator[tuple[str, Told]]:
        for it in self.get_params(ctx):
            if isinstance(it, click.Argument):
                (name,) = it.get_usage_pieces(ctx)
                yield "Arguments", (name, getattr(it, "explanation", ""))
            elif (told := it.get_help_record(ctx)) is not None:
                yield self.section_of(it), told

    def section_of(self, option: click.Parameter) -> str:
        """Where an option is explained."""
        return "Options"


class Group(click.Group):
    """Commands of this sort; a word that is none of them is compared with those there are."""

    command_class = Command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl(
                # Its whole first sentence, which takes as many lines as it needs.
                [(name, it.get_short_help_str(_SENTENCE)) for name, it in commands.items() if it]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        wanted, known = args[0], self.list_commands(ctx)
        if wanted not in known and not wanted.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {wanted!r}.{_suggestion(ctx, wanted, known)}")
        return super().resolve_command(ctx, args)


def _suggestion(ctx: click.Context, wanted: str, known: list[str]) -> str:
    # Those who know what they want do not wait for it to be loaded.
    from .synonyms import find_meant

    meant = find_meant(wanted, known, is_first=ctx.parent is None)
    return f" Did you mean '{ctx.command_path} {meant}'?" if meant else ""
