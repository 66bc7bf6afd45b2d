"""How a job is doing, as `postroad job run` and `show` tell it."""

from __future__ import annotations

import sys

import click

from postroad.admin.pipeline_runs import JobProgress


class ShownProgress:
    """Progress on a terminal: one line that changes; elsewhere, a line when something has."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._last: tuple[int, ...] = ()
        self._spark_ui_url: str | None = None

    def show(self, it: JobProgress) -> None:
        """Show it, if it is new."""
        if it.spark_ui_url not in (None, self._spark_ui_url):
            # A new session may be at another port.
            self._spark_ui_url = it.spark_ui_url
            self._erase()
            click.echo(f"Spark UI: {it.spark_ui_url}", err=True)
        told = (it.acked, it.pending, it.waiting, it.dead, it.unpublished, it.restarts)
        if self._is_terminal:
            self._erase()
            click.echo(tell_progress(it), nl=False, err=True)
        elif told != self._last:
            click.echo(tell_progress(it), err=True)
        self._last = told

    def _erase(self) -> None:
        if self._is_terminal:
            click.echo("\r\x1b[K", nl=False, err=True)

    def end(self) -> None:
        """Leave the line as it is."""
        if self._is_terminal and self._last:
            click.echo(err=True)


def tell_progress(it: JobProgress) -> str:
    """Progress in one line."""
    late = sum(it.late.values())
    tasks = ", ".join(
        f"{name} {task.per_s:,.0f}/s {task.latency_s * 1000:,.2f} ms"
        for name, task in it.tasks.items()
    )
    return (
        f"{it.acked:,} acknowledged ({it.acked_per_s:,.0f}/s), {it.pending:,} pending"
        f" (oldest {it.oldest_s:.1f} s), {it.replayed:,} retried, {it.waiting:,} waiting,"
        f" {it.dead:,} dead, {it.batches:,} batches of {it.batch_s * 1000:.0f} ms"
        + (f", {late:,} late" if late else "")
        + (f", {it.unpublished:,} unpublished" if it.unpublished else "")
        + (f", {it.restarts:,} restarts" if it.restarts else "")
        + (f"; {tasks}" if tasks else "")
    )
