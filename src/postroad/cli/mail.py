"""`postroad mail`: the mail of a node that is not running.

All work happens in `postroad.admin`; here are only arguments and output.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click
import msgspec

from postroad.admin.mail import DeadLetter, MailStatistics, StoreOperations, mail_operations

T = TypeVar("T")

_store = click.option("--store", required=True, metavar="PATH|URL", help="The store of the node.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
_queue = click.option("--queue", help="Only those of one queue.")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group()
def mail() -> None:
    """Look into the mail of a node, and decide about dead letters.

    These commands open the store by themselves, so stop the node first. A running node does the
    same through its API.

    \b
    Example: what died, and another try for all of it
      postroad mail dead --store alpha.db
      postroad mail retry --store alpha.db --all
    """


def _operate(location: str, action: Callable[[StoreOperations], Awaitable[T]]) -> T:
    async def work() -> T:
        async with mail_operations(location) as operations:
            return await action(operations)

    return asyncio.run(work())


def _print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


@mail.command()
@_store
@_json
def stat(store: str, as_json: bool) -> None:
    """Show how much waits where, and since when.

    \b
    Example:
      postroad mail stat --store alpha.db
    """
    statistics = _operate(store, lambda operations: operations.statistics())
    if as_json:
        _print_json(statistics)
    else:
        _show_statistics(statistics)


def _show_statistics(statistics: MailStatistics) -> None:
    rows = [
        ("queue", name, it.depth, it.oldest_s, "paused" if it.is_paused else "")
        for name, it in statistics.queues.items()
    ]
    rows += [
        ("peer", name, it.depth, it.oldest_s, f"epoch {it.epoch}" if it.epoch > 1 else "")
        for name, it in statistics.peers.items()
    ]
    click.echo(f"{'KIND':<6} {'NAME':<32} {'WAITING':>10} {'OLDEST':>10}  NOTES")
    for kind, name, depth, oldest_s, notes in rows:
        age = "" if oldest_s is None else f"{oldest_s:,.0f} s"
        click.echo(f"{kind:<6} {name:<32} {depth:>10,} {age:>10}  {notes}".rstrip())
    click.echo(f"dead letters: {statistics.dead:,}")


@mail.command()
@_store
@_queue
@click.option("--after", default=0, help="Continue a list after this number.")
@click.option("--limit", default=100, show_default=True, help="How many to show.")
@_json
def dead(store: str, queue: str | None, after: int, limit: int, as_json: bool) -> None:
    """List dead letters: messages that could not be delivered or handled.

    \b
    Example:
      postroad mail dead --store alpha.db --queue orders
    """
    letters = _operate(
        store, lambda operations: operations.dead_letters(queue, after=after, limit=limit)
    )
    if as_json:
        _print_json(letters)
        return
    for letter in letters:
        click.echo(_line(letter))
    if not letters:
        click.echo("No dead letters.")


def _line(dead: DeadLetter) -> str:
    when = datetime.datetime.fromtimestamp(dead.died_ms / 1000).astimezone()
    way = f"to {dead.peer}" if dead.is_outbound else f"from {dead.peer}"
    return (
        f"{dead.id:>6}  {when:%F %T}  {way}, queue {dead.queue}: {dead.reason}"
        f" ({dead.detail.splitlines()[0] if dead.detail else 'no detail'})"
    )


@mail.command()
@_store
@click.argument("number", type=int)
@_json
def show(store: str, number: int, as_json: bool) -> None:
    """Show one dead letter, with its body.

    \b
    Example:
      postroad mail show --store alpha.db 17
    """
    letter = _operate(store, lambda operations: operations.dead_letter(number))
    if as_json:
        _print_json(letter)
        return
    click.echo(_line(letter))
    click.echo(f"failures: {letter.failures}")
    click.echo(f"key: {letter.letter.key}")
    for name, value in (letter.letter.headers or {}).items():
        click.echo(f"header {name}: {value}")
    click.echo(f"detail: {letter.detail}")
    click.echo(f"body ({len(letter.letter.body)} bytes): {letter.letter.body!r}")


@mail.command()
@_store
@click.argument("numbers", type=int, nargs=-1)
@click.option("--all", "all_of_them", is_flag=True, help="All dead letters.")
@_queue
def retry(store: str, numbers: tuple[int, ...], all_of_them: bool, queue: str | None) -> None:
    """Have dead letters delivered or handled again, when the node runs.

    \b
    Example:
      postroad mail retry --store alpha.db 17 18
    """
    _check_choice(numbers, all_of_them)

    async def act(operations: StoreOperations) -> int:
        if all_of_them:
            return await operations.retry_all_dead(queue)
        for number in numbers:
            await operations.retry_dead(number)
        return len(numbers)

    click.echo(f"{_operate(store, act):,} dead letters will be tried again.")


@mail.command()
@_store
@click.argument("numbers", type=int, nargs=-1)
@click.option("--all", "all_of_them", is_flag=True, help="All dead letters.")
@_queue
@_yes
def drop(
    store: str, numbers: tuple[int, ...], all_of_them: bool, queue: str | None, yes: bool
) -> None:
    """Forget dead letters for good.

    \b
    Example:
      postroad mail drop --store alpha.db --all --queue orders
    """
    _check_choice(numbers, all_of_them)
    if not yes:
        click.confirm("Dropped letters are gone for good. Go on?", abort=True)

    async def act(operations: StoreOperations) -> int:
        if all_of_them:
            return await operations.drop_all_dead(queue)
        for number in numbers:
            await operations.drop_dead(number)
        return len(numbers)

    click.echo(f"{_operate(store, act):,} dead letters dropped.")


def _check_choice(numbers: tuple[int, ...], all_of_them: bool) -> None:
    if bool(numbers) == all_of_them:
        raise click.UsageError("Give either numbers of dead letters, or --all.")


@mail.command()
@_store
@click.argument("peer")
@click.option("--purge", is_flag=True, help="Remove what waits for the peer first.")
@_yes
def epoch(store: str, peer: str, purge: bool, yes: bool) -> None:
    """Begin anew with a peer, after one of the two stores was restored from a backup.

    Two stores that disagree on what was delivered refuse to go on, because one of them is an old
    copy. This numbers what waits for the peer from 1 again. If this node's store is the old copy,
    what waits may have been delivered already: --purge removes it.

    \b
    Example:
      postroad mail epoch --store alpha.db beta
    """
    if not yes:
        click.confirm(
            f"What waits for {peer} is {'removed' if purge else 'sent as new'}. Go on?", abort=True
        )

    async def act(operations: StoreOperations) -> int:
        if purge:
            await operations.purge_outbox(peer)
        return await operations.start_epoch(peer)

    waiting = _operate(store, act)
    click.echo(f"A new epoch with {peer} begins; {waiting:,} numbers wait to be sent.")
