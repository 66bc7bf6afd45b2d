"""`postroad pipeline`: jobs, drawn, run and repaired.

All work happens in `postroad.admin`; here are only arguments and output.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from postroad.admin import pipeline as admin
from postroad.admin import pipeline_runs as runs
from postroad.admin.errors import NotFound

from .helping import Group, argument
from .values import tell_count
from .verbs import ask

Command = TypeVar("Command", bound=Callable[..., Any])

_job = argument(
    "job",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file of the job, TOML or JSON.",
)
_segment = argument("id", required=False, help="One dead segment, by its id; or --all.")
_store = click.option(
    "--store",
    metavar="PATH|URL",
    help="Where the job's account is kept; <job>.db beside its file by default.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def _spark(command: Command) -> Command:
    options = (
        click.option("--spark", is_flag=True, help="Run it on Spark, on all cores here."),
        click.option("--master", metavar="URL", help="Run it on this Spark cluster."),
        click.option("--batch", is_flag=True, help="On Spark: all that there is as one batch."),
        click.option(
            "--bind",
            metavar="HOST[:PORT]",
            help="On a cluster: where executors reach this machine; found out by default.",
        ),
        click.option(
            "--partitions",
            type=click.IntRange(min=1),
            metavar="N",
            help="On Spark: parts of a batch; as many as this machine has cores by default.",
        ),
        click.option(
            "--conf",
            multiple=True,
            metavar="KEY=VALUE",
            help="A property of Spark; several times for several.",
        ),
        click.option(
            "--packages",
            multiple=True,
            metavar="GROUP:NAME:VERSION",
            help="Java libraries from Maven for Spark; several times, or with commas.",
        ),
        click.option(
            "--jars",
            multiple=True,
            metavar="PATH|URL",
            help="Java libraries for Spark; several times, or with commas.",
        ),
        click.option(
            "--py-files",
            multiple=True,
            metavar="PATH|URL",
            help="Python files, ZIP files or wheels for executors; several times, or with commas.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_dry_run = click.option("--dry-run", is_flag=True, help="Only tell what would be touched.")
_all = click.option("--all", "is_all", is_flag=True, help="All of them.")


@click.group(cls=Group)
def pipeline() -> None:
    """Run pipelines that account for every segment.

    A job is a TOML or JSON file: what flows where, and through which functions.

    \b
    Example: see what a job does, run it, and look at what could not be done
      postroad pipeline explain clearing.toml
      postroad pipeline run clearing.toml
      postroad pipeline dead clearing.toml
    """


@pipeline.command()
@_job
@click.option("--mermaid", is_flag=True, help="Draw it for mermaid, as in many wikis.")
def explain(job: Path, mermaid: bool) -> None:
    """Draw a job: its tasks, where segments go, where they are shuffled.

    Every mistake in it is told at once.

    \b
    Example:
      postroad pipeline explain clearing.toml
    """
    read = admin.load_job(job)
    click.echo(admin.explain_mermaid(read) if mermaid else admin.explain_text(read))


@pipeline.command()
@_job
@_store
@_spark
@_json
def run(job: Path, store: str | None, as_json: bool, **spark: Any) -> None:
    """Run a job in this process until its inputs have nothing more.

    In plain Python, or on Spark with --spark: then on all cores of this machine, or on a cluster
    with --master. Functions are imported from the current directory. Stop it with Ctrl-C and run it
    again: it goes on where it was. Exits with 4 if segments died.

    \b
    Example:
      postroad pipeline run clearing.toml
      postroad pipeline run clearing.toml --spark
      postroad pipeline run clearing.toml --master spark://host:7077
      postroad pipeline run clearing.toml --master yarn --conf spark.executor.instances=20
    """
    sys.path.insert(0, str(Path.cwd()))
    choice = _spark_choice(**spark)
    for path in choice.py_files if choice else ():
        # The process that starts a job knows its functions too.
        sys.path.insert(1, str(Path(path).parent if path.endswith(".py") else path))
    shown = _Shown()
    try:
        counts = asyncio.run(runs.run_job(job, store, choice, shown.show))
    finally:
        shown.end()
    dead = asyncio.run(admin.count_dead(job, store))
    if as_json:
        told = {"acked": counts.acked, "failed": counts.failed, "dead": dead}
        click.echo(msgspec.json.encode(told))
    else:
        click.echo(f"{counts.acked:,} acknowledged, {counts.failed:,} failures, {dead:,} dead")
    if dead:
        raise click.exceptions.Exit(runs.EXIT_DEAD)


def _spark_choice(
    spark: bool,
    master: str | None,
    batch: bool,
    bind: str | None,
    partitions: int | None,
    conf: tuple[str, ...],
    packages: tuple[str, ...],
    jars: tuple[str, ...],
    py_files: tuple[str, ...],
) -> runs.SparkChoice | None:
    options = (bind, partitions, conf, packages, jars, py_files)
    if not (spark or master or batch):
        if any(options):
            raise click.UsageError(
                "--bind, --partitions, --conf, --packages, --jars and --py-files are for Spark: "
                "give --spark or --master too."
            )
        return None
    return runs.SparkChoice(
        master,
        batch,
        (str(Path.cwd()),),
        bind or "",
        partitions,
        dict(map(_read_property, conf)),
        _split(packages),
        _split(jars),
        _split(py_files),
    )


def _read_property(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise click.UsageError(f"--conf {text!r} is not of the form KEY=VALUE.")
    return key, value


def _split(values: tuple[str, ...]) -> tuple[str, ...]:
    """As spark-submit takes them: with commas."""
    return tuple(part for value in values for part in value.split(",") if part)


def _to_arguments(options: dict[str, Any]) -> list[str]:
    """Options as they were given."""
    arguments = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(flag)
        elif isinstance(value, tuple):
            arguments += [word for one in value for word in (flag, one)]
        elif value:
            arguments += [flag, str(value)]
    return arguments


class _Shown:
    """Progress on a terminal: one line that changes; elsewhere, a line when something has."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._last: tuple[int, ...] = ()

    def show(self, it: runs.JobProgress) -> None:
        told = (it.acked, it.pending, it.waiting, it.dead, it.unpublished, it.restarts)
        if self._is_terminal:
            click.echo(f"\r\x1b[K{_tell_progress(it)}", nl=False, err=True)
        elif told != self._last:
            click.echo(_tell_progress(it), err=True)
        self._last = told

    def end(self) -> None:
        if self._is_terminal and self._last:
            click.echo(err=True)


def _tell_progress(it: runs.JobProgress) -> str:
    return (
        f"{it.acked:,} acknowledged ({it.acked_per_s:,.0f}/s), {it.pending:,} pending"
        f" (oldest {it.oldest_s:.1f} s), {it.replayed:,} replayed, {it.waiting:,} waiting,"
        f" {it.dead:,} dead, {it.batches:,} batches of {it.batch_s * 1000:.0f} ms"
        + (f", {it.unpublished:,} unpublished" if it.unpublished else "")
        + (f", {it.dropped_late:,} dropped late" if it.dropped_late else "")
        + (f", {it.restarts:,} restarts" if it.restarts else "")
    )


@pipeline.command()
@_job
@_store
@_spark
def submit(job: Path, **options: Any) -> None:
    """Run a job in the background; it goes on when this shell ends.

    \b
    Example: start it, look at it every second, stop it
      postroad pipeline submit clearing.toml --spark
      postroad pipeline status clearing.toml --watch
      postroad pipeline stop clearing.toml
    """
    pid, log = runs.submit_job(job, _to_arguments(options))
    click.echo(f"process {pid} runs it and writes to {log}")


@pipeline.command()
@_job
@_store
@_json
@click.option("--watch", is_flag=True, help="Look again every second, until it does not run.")
@click.option("--metrics", is_flag=True, help="As Prometheus reads it.")
def status(job: Path, store: str | None, as_json: bool, watch: bool, metrics: bool) -> None:
    """Tell how a job is doing, or how it stands if it does not run.

    \b
    Example:
      postroad pipeline status clearing.toml --json
      postroad pipeline status clearing.toml --metrics
    """
    if metrics:
        click.echo(runs.tell_metrics(job, store), nl=False)
        return
    while (progress := runs.find_progress(job)) is not None:
        told = f"process {progress.pid}: {_tell_progress(progress)}"
        click.echo(msgspec.json.encode(progress) if as_json else told)
        if not watch:
            return
        time.sleep(runs.PROGRESS_S)
    standing = asyncio.run(admin.look(job, store))
    told = (
        f"it does not run: {standing.pending:,} pending, {standing.waiting:,} waiting,"
        f" {standing.dead:,} dead, {standing.unpublished:,} unpublished"
        + (f", {standing.dropped_late:,} dropped late" if standing.dropped_late else "")
    )
    click.echo(msgspec.json.encode(standing) if as_json else told)


@pipeline.command()
@_job
@_dry_run
@_yes
def stop(job: Path, dry_run: bool, yes: bool) -> None:
    """Stop a job that runs; run again, it goes on where it was.

    \b
    Example:
      postroad pipeline stop clearing.toml
    """
    progress = runs.find_progress(job)
    if progress is not None and not _may_go_on(
        f"Process {progress.pid} stops; run again, the job goes on where it was.", dry_run, yes
    ):
        return
    pid = runs.stop_job(job)
    click.echo(f"process {pid} has stopped")


@pipeline.command()
@_job
@_store
@click.option("--limit", default=100, show_default=True, help="How many to show.")
@_json
def dead(job: Path, store: str | None, limit: int, as_json: bool) -> None:
    """List segments that could not be done, with the reason.

    \b
    Example:
      postroad pipeline dead clearing.toml --json
    """
    found = asyncio.run(admin.dead_segments(job, store, limit))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    for it in found:
        click.echo(f"{it.id}  {it.failed_task}: {it.error} ({it.attempts} attempts)")
        click.echo(f"    {it.segment!r}")
    click.echo(f"{len(found):,} dead")


@pipeline.command()
@_job
@_store
@_segment
@_all
@_dry_run
def replay(job: Path, store: str | None, id: str | None, is_all: bool, dry_run: bool) -> None:
    """Have dead segments come again the next time the job runs.

    \b
    Example: after the function was repaired
      postroad pipeline replay clearing.toml --all
    """
    count = _count(job, store, id, is_all)
    if dry_run:
        click.echo(f"Nothing is done. {tell_count(count, 'segment')} would come again.")
        return
    count = asyncio.run(admin.replay_dead(job, store, id))
    click.echo(f"{count:,} come again")


@pipeline.command()
@_job
@_store
@_segment
@_all
@_dry_run
@_yes
def drop(
    job: Path, store: str | None, id: str | None, is_all: bool, dry_run: bool, yes: bool
) -> None:
    """Forget dead segments.

    \b
    Example:
      postroad pipeline drop clearing.toml 00ff00ff00ff00ff
    """
    count = _count(job, store, id, is_all)
    told = f"Dropped segments are gone for good. It touches {tell_count(count, 'segment')}."
    if not _may_go_on(told, dry_run, yes):
        return
    count = asyncio.run(admin.drop_dead(job, store, id))
    click.echo(f"{count:,} forgotten")


def _count(job: Path, store: str | None, id: str | None, is_all: bool) -> int:
    """How many dead segments are meant."""
    if (id is None) == (not is_all):
        raise click.UsageError("Give the id of one, or --all.")
    count = asyncio.run(admin.count_dead(job, store, id))
    if id is not None and not count:
        missing = NotFound(f"there is no dead segment {id}")
        missing.add_note(f"postroad pipeline dead {shlex.quote(str(job))}")
        raise missing
    return count


def _may_go_on(told: str, is_dry: bool, is_sure: bool) -> bool:
    """Whether something is wanted that ends or loses something."""
    if is_dry:
        click.echo(f"Nothing is done. {told}")
        return False
    if is_sure:
        return True
    click.echo(told, err=True)
    return ask("Go on?")
