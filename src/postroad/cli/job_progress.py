"""How a job is doing, as `postroad job run` and `show` tell it."""

from __future__ import annotations

import sys

import click

from postroad.admin.pipeline_runs import JobProgress


class ProgressDisplay:
    """Progress on a terminal: one line that changes; elsewhere, a line when something has."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._last: tuple[int, ...] = ()
        self._spark_ui_url: str | None = None

    def show(self, progress: JobProgress) -> None:
        """Show progress, if it is new."""
        if progress.spark_ui_url not in (None, self._spark_ui_url):
            # A new session may be at another port.
            self._spark_ui_url = progress.spark_ui_url
            self._erase()
            click.echo(f"Spark UI: {progress.spark_ui_url}", err=True)
        counts = (
            progress.acked,
            progress.pending,
            progress.waiting,
            progress.dead,
            progress.unpublished,
            progress.restarts,
        )
        if self._is_terminal:
            self._erase()
            click.echo(format_progress(progress), nl=False, err=True)
        elif counts != self._last:
            click.echo(format_progress(progress), err=True)
        self._last = counts

    def _erase(self) -> None:
        if self._is_terminal:
            click.echo("\r\x1b[K", nl=False, err=True)

    def end(self) -> None:
        """Leave the line as it is."""
        if self._is_terminal and self._last:
            click.echo(err=True)


def format_progress(progress: JobProgress) -> str:
    """Progress in one line."""
    late = sum(progress.late.values())
    tasks = ", ".join(
        f"{name} {task.per_s:,.0f}/s {task.latency_s * 1000:,.2f} ms"
        for name, task in progress.tasks.items()
    )
    parts = [
        f"{progress.acked:,} acknowledged ({progress.acked_per_s:,.0f}/s)",
        f"{progress.pending:,} pending (oldest {progress.oldest_s:.1f} s)",
        f"{progress.replayed:,} retried",
        f"{progress.waiting:,} waiting",
        f"{progress.dead:,} dead",
        f"{progress.batches:,} batches of {progress.batch_s * 1000:.0f} ms",
    ]
    optional = {"late": late, "unpublished": progress.unpublished, "restarts": progress.restarts}
    parts += [f"{count:,} {name}" for name, count in optional.items() if count]
    return ", ".join(parts) + (f"; {tasks}" if tasks else "")
