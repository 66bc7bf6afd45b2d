"""`postroad bench`: how fast nodes are on this machine."""

from __future__ import annotations

import asyncio
import sys

import click
import msgspec

from postroad.admin.benching import WAYS, Machine, Speed, measure

from .helping import Command, argument
from .rendering import print_json
from .tables import Column, table


@click.command(cls=Command)
@argument(
    "ways", nargs=-1, type=click.Choice([*WAYS]), help="What is measured; all of it by default."
)
@click.option("--seconds", default=2.0, show_default=True, help="For each measurement.")
@click.option("--size", default=512, show_default=True, help="Bytes of a message.")
@click.option("--at-once", default=32, show_default=True, help="How many on their way together.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def bench(ways: tuple[str, ...], seconds: float, size: int, at_once: int, as_json: bool) -> None:
    """Measure how fast nodes are here.

    Two nodes in two processes: requests and their replies, calls of an action, and durable
    messages there and back, one after another and many at once.

    \b
    Example:
      postroad bench
      postroad bench request --seconds 5
    """
    machine = Machine.here()
    shown = _Shown(2 * len(ways or WAYS))
    results = asyncio.run(
        measure([*(ways or WAYS)], seconds=seconds, size=size, at_once=at_once, on_done=shown.count)
    )
    shown.end()
    told = [msgspec.to_builtins(it) for it in results]
    if as_json:
        print_json({"machine": msgspec.to_builtins(machine), "size": size, "results": told})
        return
    columns = [Column(it, is_number=it != "name") for it in Speed.__struct_fields__]
    click.echo(table(columns, told))
    click.echo(
        f"{size} bytes; {machine.system} {machine.processor}, {machine.cores} cores, load"
        f" {machine.load:.2f}, Python {machine.python}, Postroad {machine.postroad}"
    )


class _Shown:
    """A bar on a terminal; nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0

    def count(self, speed: Speed) -> None:
        self._done += 1
        if sys.stderr.isatty():
            bar = "#" * self._done + " " * (self._total - self._done)
            click.echo(f"\r\x1b[K[{bar}] {speed.name} x {speed.at_once}", nl=False, err=True)

    def end(self) -> None:
        if sys.stderr.isatty():
            click.echo(err=True)
