"""Commands made of operations: `queue.purge` is `postroad queue purge`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from postroad.admin import PostroadError
from postroad.admin.operations import OPERATIONS, Effect, Operation

from .bulk import do_each, tell_first
from .desks import Desk
from .failures import notes_of
from .main import EXIT_FAILED, EXIT_OK, EXIT_UNHEALTHY
from .parameters import make_options, make_parameters, read_said
from .places import PlacedCommand, open_desk, take_place
from .rendering import print_json, render_result
from .screen import full_screen, is_terminal, progress_bar, redraw
from .spelling import Every, Scope, Spelling
from .spellings import SPELLINGS
from .values import tell_count

_JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON, for programs.")
_WATCH = click.Option(["--watch"], is_flag=True, help="Show it anew whenever it changes.")
_DRY_RUN = click.Option(
    ["--dry-run", "dry_run"], is_flag=True, help="Only tell what would be touched."
)
_YES = click.Option(["--yes"], is_flag=True, help="Do not ask.")
_ALL = click.Option(["--all", "is_all"], is_flag=True, help="All of them.")


def make_verb(operation: Operation) -> click.Command:
    """The command of an operation."""
    spelling = SPELLINGS[operation.name]

    def callback(**given: Any) -> int:
        place = take_place(given)
        with open_desk(place) as desk:
            try:
                return Doing(operation, spelling, desk, given).do()
            except LookupError as error:
                raise _with_next(error, operation, spelling.listing) from None

    return PlacedCommand(
        operation.verb,
        callback=callback,
        params=[*make_parameters(operation, spelling), *_manners(operation, spelling)],
        help=_help(operation, spelling),
        short_help=operation.summary,
    )


def _with_next(error: LookupError, operation: Operation, listing: str | None) -> LookupError:
    """What was not found may be in the list of what there is."""
    usual = f"{operation.noun}.ls"
    if listing is None and usual in OPERATIONS and usual != operation.name:
        listing = f"{operation.noun} ls"
    if listing is not None and isinstance(error, PostroadError) and not notes_of(error):
        error.add_note(f"postroad {listing}")
    return error


def _manners(operation: Operation, spelling: Spelling) -> Iterator[click.Parameter]:
    every = spelling.every
    if every is not None:
        listing = OPERATIONS[every.operation]
        yield from make_options(listing, every.filters, SPELLINGS[listing.name])
    if spelling.whole or (every is not None and every.has_all):
        yield _ALL
    if operation.effect is Effect.DANGER or every is not None:
        yield from (_DRY_RUN, _YES)
    if operation.is_read:
        yield _WATCH
    yield _JSON


def _help(operation: Operation, spelling: Spelling) -> str:
    said = operation.help.partition("\nArgs:")[0].partition("\nRaises:")[0].strip()
    examples = "\n".join(f"  postroad {it}" for it in spelling.example.splitlines())
    return f"{said}\n\n\b\nExample:\n{examples}"


class Doing:
    """One operation that is being done for somebody.

    Args:
        given: what click has read.
    """

    def __init__(
        self, operation: Operation, spelling: Spelling, desk: Desk, given: dict[str, Any]
    ) -> None:
        self.operation = operation
        self.spelling = spelling
        self.desk = desk
        self._as_json = bool(given.pop("as_json", False))
        self._is_watching = bool(given.pop("watch", False))
        self._is_dry = bool(given.pop("dry_run", False))
        self._is_sure = bool(given.pop("yes", False))
        self._is_all = bool(given.pop("is_all", False))
        each = given.pop(spelling.each, ()) if spelling.each else ()
        # Whether they are chosen from a list, and not named.
        self._is_chosen = False
        self._each = each if spelling.every is None else self._choose(spelling.every, each, given)
        if spelling.joined is not None:
            given[spelling.joined] = " ".join(given[spelling.joined])
        self.said = read_said(operation.parameters, given)
        self._check()

    def _check(self) -> None:
        """Refuse here what the operation would refuse anyway, as wrong usage."""
        whole = self.spelling.whole
        if whole and any(self.said.get(it) for it in whole) == self._is_all:
            raise click.UsageError(f"Say which: {', '.join(self._ways(whole))} or --all.")
        for said in self._sayings():
            try:
                self.operation.read_params(said)
            except ValueError as error:
                raise click.UsageError(f"{error}.") from None

    def _ways(self, whole: tuple[str, ...]) -> Iterator[str]:
        """How each of these parameters is said."""
        for it in whole:
            is_argument = it in self.spelling.positional
            yield it.upper().removesuffix("S") if is_argument else f"--{it}"

    def _choose(
        self, every: Every, named: tuple[str, ...], given: dict[str, Any]
    ) -> tuple[str, ...]:
        """Those that are meant: the named ones, or those that are listed, a page at a time."""
        listing = OPERATIONS[every.operation]
        chosen = {name: given.pop(name) for name in every.filters}
        filters = read_said(listing.parameters, chosen)
        ways = [str(self.spelling.each).upper(), *(f"--{name}" for name in every.filters)]
        if every.has_all:
            ways.append("--all")
        if sum(map(bool, (named, filters, self._is_all))) != 1:
            raise click.UsageError(f"Say which: {', '.join(ways[:-1])} or {ways[-1]}.")
        if named:
            return named
        self._is_chosen = True
        ended = None if "status" in filters else every.ended
        ids: list[str] = []
        page: dict[str, Any] = {}
        while rows := self.desk.do(every.operation, {**every.said, **filters, **page}):
            ids += [it[every.field] for it in rows if ended is None or it[ended] is None]
            page = {every.page: rows[-1][every.field]}
        return tuple(ids)

    def _sayings(self) -> Iterator[dict[str, Any]]:
        each = self.spelling.each
        if each is None:
            yield self.said
            return
        for it in self._each:
            yield {**self.said, each: it}

    def do(self) -> int:
        """Do it, and tell what came of it."""
        if self._is_watching:
            return self._watch()
        is_asked = self._is_dry or self.operation.effect is Effect.DANGER
        is_asked |= self._is_chosen and bool(self.spelling.warning)
        if is_asked and not self._may_go_on():
            return EXIT_OK
        if self._is_chosen or len(self._each) > 1:
            return self._do_each()
        results = [*self._results()]
        self._tell(results)
        return exit_code(self.operation.name, results[-1]) if results else EXIT_OK

    def _results(self) -> Iterator[Any]:
        chunk = self.spelling.chunk
        is_whole = not {"limit", "ids"} & self.said.keys()
        if chunk is not None and is_whole and sys.stderr.isatty():
            yield self._do_in_parts(chunk)
            return
        for said in self._sayings():
            yield self.desk.do(self.operation.name, said)

    def _do_each(self) -> int:
        """Do it to several; those that fail are told, and the others done nevertheless."""
        results: list[Any] = []
        code = do_each(
            self._each,
            lambda id: self.desk.do(
                self.operation.name, {**self.said, str(self.spelling.each): id}
            ),
            lambda result: results.append(result if self._as_json else _count_of(result)),
            verb=self.operation.verb,
            noun=self.operation.noun,
        )
        if self._as_json:
            print_json(results)
        else:
            click.echo(f"{self._done(sum(results))}.")
        return code

    def _do_in_parts(self, chunk: int) -> dict[str, int]:
        """Do it to a part of all at a time, so that somebody sees how far it is."""
        total = self._count()
        done = 0
        with progress_bar(total, self.operation.verb) as show:
            while done < total:
                part = {**self.said, "limit": min(chunk, total - done)}
                count = _count_of(self.desk.do(self.operation.name, part))
                if not count:
                    break
                done += count
                show(done)
        return {"count": done}

    def _tell(self, results: list[Any]) -> None:
        if self._as_json:
            print_json(results[0] if self.spelling.each is None else results)
        elif self.spelling.done:
            count = sum(_count_of(it) for it in results)
            click.echo(f"{self._done(count)}.")
        else:
            for it in results:
                click.echo(render_result(self.operation, it))

    @property
    def _noun(self) -> str:
        scope = self.spelling.scope
        return scope.noun if scope is not None else self.operation.noun

    def _done(self, count: int) -> str:
        said = {name: value for name, value in self.said.items() if isinstance(value, str)}
        when = "" if self.desk.is_running else " when the node is started"
        return self.spelling.done.format(count=tell_count(count, self._noun), when=when, **said)

    # Watching.

    def _watch(self) -> int:
        changes = self.desk.watch([(self.operation.name, self.said)])
        if self._as_json:
            for _, value in changes:
                click.echo(msgspec.json.encode(value))
                sys.stdout.flush()
            return EXIT_OK
        with full_screen():
            for _, value in changes:
                text = render_result(self.operation, value)
                if is_terminal():
                    redraw(f"{self.desk.label}: {self.operation.name}; Ctrl-C ends\n\n{text}")
                else:
                    click.echo(f"{text}\n")
                    sys.stdout.flush()
        return EXIT_OK

    # Asking first.

    def _may_go_on(self) -> bool:
        """Whether a dangerous operation is wanted; tells what it touches."""
        told = self._told()
        if not self._is_dry and (self.spelling.counts or self._is_chosen) and not self._count():
            return True
        if self._is_dry:
            if self._as_json:
                chosen = {"ids": self._each} if self._is_chosen else {}
                print_json({"operation": self.operation.name, "touches": self._count(), **chosen})
            else:
                click.echo(f"Nothing is done. {told}")
            return False
        if self._is_sure:
            return True
        click.echo(told, err=True)
        return ask("Go on?")

    def _told(self) -> str:
        said = {name: value for name, value in self.said.items() if isinstance(value, str)}
        touched = f"It touches {tell_count(self._count(), self._noun)}"
        if self._is_chosen and self._each:
            touched += f": {tell_first(self._each)}"
        return f"{self.spelling.warning.format(**said)} {touched}.".lstrip()

    def _count(self) -> int:
        scope = self.spelling.scope
        if scope is None or self._is_chosen:
            return len(self._each)
        return sum(self._touched(scope, said) for said in self._sayings())

    def _touched(self, scope: Scope, said: dict[str, Any]) -> int:
        if scope.operation is None:
            return 1
        asked = OPERATIONS.find(scope.operation)
        known = {it.name for it in asked.parameters}
        found = self.desk.do(
            asked.name, {name: value for name, value in said.items() if name in known}
        )
        if scope.field is None:
            return len(found) if isinstance(found, list) else 1
        return int(found[scope.field])


def ask(question: str) -> bool:
    """Whether somebody says yes.

    Raises:
        click.UsageError: nobody is there.
    """
    click.echo(f"{question} [y/N] ", nl=False, err=True)
    answer = sys.stdin.readline()
    if not answer:
        click.echo(err=True)
        raise click.UsageError("Nobody answered: say --yes to go on without being asked.")
    if answer.strip().lower() in ("y", "yes"):
        return True
    click.echo("Nothing is done.", err=True)
    raise click.exceptions.Exit(1)


def _count_of(result: Any) -> int:
    count = result.get("count") if isinstance(result, dict) else None
    return count if isinstance(count, int) else 1


def exit_code(operation: str, result: Any) -> int:
    """What the result of an operation means to scripts."""
    if operation == "node.health" and not result["is_ready"]:
        return EXIT_UNHEALTHY
    if operation == "cells.ping" and all(it["error"] for it in result):
        return EXIT_FAILED
    return EXIT_OK
