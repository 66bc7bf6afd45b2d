"""`postroad job`: jobs in files, drawn, run and repaired.

All work happens in `postroad.admin`; here are only arguments and output. A job that is named, and
not its file, is one of a node: then the operation of the same name is meant.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from postroad.admin import job_queues as queues
from postroad.admin import pipeline as admin
from postroad.admin import pipeline_runs as runs
from postroad.admin.errors import NotFound

from .helping import Group, argument
from .job_progress import ProgressDisplay, format_progress
from .values import tell_count
from .verbs import ask

Command = TypeVar("Command", bound=Callable[..., Any])

_job = argument(
    "job",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file of the job, TOML or JSON; or the name of a job of a node.",
)
_segment = argument("id", required=False, help="One dead segment, by its id; or --all.")
_store = click.option(
    "--store",
    metavar="PATH|URL",
    help="Where the job's account is kept; <job>.db beside its file by default, and the store of"
    " the node for a job with queues.",
)
_config = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The configuration of the node whose queues the job names; POSTROAD_CONFIG or"
    " postroad.toml by default.",
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
            help="On Spark: parts of a batch; as many as the executors have cores by default.",
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
def job() -> None:
    """Run jobs that account for every segment.

    A job is a TOML or JSON file: what flows where, and through which functions.

    \b
    Example: see what a job does, run it, and look at what could not be done
      postroad job explain clearing.toml
      postroad job run clearing.toml
      postroad job dead-letters clearing.toml
    """


@job.command()
@_job
@click.option("--mermaid", is_flag=True, help="Draw it for mermaid, as in many wikis.")
def explain(job: Path, mermaid: bool) -> None:
    """Draw a job: its tasks, where segments go, where they are shuffled.

    Every mistake in it is told at once.

    \b
    Example:
      postroad job explain clearing.toml
    """
    read = admin.load_job(job)
    click.echo(admin.explain_mermaid(read) if mermaid else admin.explain_text(read))


@job.command()
@_job
@_store
@_config
@_spark
@_json
@click.option("--until-eof", is_flag=True, hidden=True)
def run(
    job: Path, store: str | None, config: Path | None, as_json: bool, until_eof: bool, **spark: Any
) -> None:
    """Run a job until its inputs have nothing more.

    In plain Python, or on Spark with --spark: then on all cores of this machine, or on a cluster
    with --master. Functions are imported from the current directory. Stop it with Ctrl-C and run it
    again: it goes on where it was. Exits with 4 if there are dead letters.

    A job with queues runs in their node if that runs here, which postroad.toml or --config names;
    if the node does not run, the job works on its store, and messages to others are sent when the
    node is started again.

    \b
    Example:
      postroad job run clearing.toml
      postroad job run clearing.toml --spark
      postroad job run clearing.toml --master spark://host:7077 --conf spark.executor.cores=2
    """
    sys.path.insert(0, str(Path.cwd()))
    display = ProgressDisplay()
    if until_eof:
        from .node_start import read_to_end
        from .running import stop_after

        stop_after(read_to_end)
    try:
        result = asyncio.run(
            runs.run_job(job, _place(**spark), display.show, store=store, config=config)
        )
    finally:
        display.end()
    if result is None:
        click.echo("stopped; run again, the job goes on where it was", err=True)
        return
    if as_json:
        click.echo(msgspec.json.encode(result))
    else:
        click.echo(
            f"{result.acked:,} acknowledged, {result.failed:,} failures, {result.dead:,} dead"
        )
    if result.dead:
        raise click.exceptions.Exit(runs.EXIT_DEAD)


def _place(
    spark: bool,
    master: str | None,
    batch: bool,
    bind: str | None,
    partitions: int | None,
    conf: tuple[str, ...],
    packages: tuple[str, ...],
    jars: tuple[str, ...],
    py_files: tuple[str, ...],
) -> runs.Local | runs.Spark:
    if not (spark or master or batch):
        if any((bind, partitions, conf, packages, jars, py_files)):
            raise click.UsageError(
                "--bind, --partitions, --conf, --packages, --jars and --py-files are for Spark: "
                "give --spark or --master too."
            )
        return runs.Local()
    for path in _split(py_files):
        # The process that starts a job knows its functions too.
        sys.path.insert(1, str(Path(path).parent if path.endswith(".py") else path))
    return runs.Spark(
        master,
        conf=dict(map(_read_property, conf)) or None,
        partitions=partitions,
        bind=bind,
        is_batch=batch,
        packages=_split(packages) or None,
        jars=_split(jars) or None,
        py_files=_split(py_files) or None,
    )


def _split(values: tuple[str, ...]) -> tuple[str, ...]:
    """As spark-submit takes them: with commas."""
    return tuple(part for value in values for part in value.split(",") if part)


def _read_property(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise click.UsageError(f"--conf {text!r} is not of the form KEY=VALUE.")
    return key, value


def _to_arguments(options: Mapping[str, Any]) -> list[str]:
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


@job.command()
@_job
@_store
@_config
@_spark
def submit(job: Path, store: str | None, config: Path | None, **spark: Any) -> None:
    """Run a job in the background; it goes on when this shell ends.

    A job with queues is submitted to their node, if that runs: it runs there.

    \b
    Example: start it, look at it every second, stop it
      postroad job submit clearing.toml --spark
      postroad job show clearing.toml --watch
      postroad job stop clearing.toml
    """
    on = _place(**spark)
    host = None if store else queues.find_node_of(job, config)
    if host is not None:
        with host[0] as client:
            view = queues.submit_to(client, job, on, host[1].node.name)
        click.echo(f"node {host[1].node.name} runs it; it is {view.state}")
        return
    options = {"store": store, "config": config, **spark}
    pid, log = runs.submit_job(job, _to_arguments(options))
    click.echo(f"process {pid} runs it and writes to {log}")


@job.command()
@_job
@_store
@_config
@_json
@click.option("--watch", is_flag=True, help="Look again every second, until it does not run.")
@click.option("--metrics", is_flag=True, help="As Prometheus reads it.")
def show(
    job: Path, store: str | None, config: Path | None, as_json: bool, watch: bool, metrics: bool
) -> None:
    """Show how a job is doing, or how it stands if it does not run.

    \b
    Example:
      postroad job show clearing.toml --json
      postroad job show clearing.toml --metrics
    """
    if metrics:
        click.echo(runs.tell_metrics(job, store), nl=False)
        return
    host = None if store else queues.find_node_of(job, config)
    while (progress := _find_progress(job, host)) is not None:
        who = f"process {progress.pid}" if host is None else f"node {host[1].node.name}"
        line = f"{who}: {format_progress(progress)}"
        if progress.spark_ui_url:
            line += f"; Spark UI {progress.spark_ui_url}"
        click.echo(msgspec.json.encode(progress) if as_json else line)
        if not watch:
            return
        time.sleep(runs.PROGRESS_S)
    standing = asyncio.run(admin.look(job, _location(job, store, config)))
    line = (
        f"it does not run: {standing.pending:,} pending, {standing.waiting:,} waiting,"
        f" {standing.dead:,} dead, {standing.unpublished:,} unpublished"
    )
    click.echo(msgspec.json.encode(standing) if as_json else line)


def _find_progress(job: Path, host: queues.Host | None) -> runs.JobProgress | None:
    return runs.find_progress(job) if host is None else queues.find_progress_at(host, job)


def _location(job: Path, store: str | None, config: Path | None) -> str | None:
    """Where the account of a job is; None if it is beside its file."""
    if store is None and admin.has_queues(admin.load_job(job)):
        return admin.find_config(config).store
    return store


@job.command()
@_job
@_config
@_dry_run
@_yes
def stop(job: Path, config: Path | None, dry_run: bool, yes: bool) -> None:
    """Stop a job that runs; run again, it goes on where it was.

    \b
    Example:
      postroad job stop clearing.toml
    """
    host = queues.find_node_of(job, config)
    progress = _find_progress(job, host)
    if host is not None:
        who = f"The job in node {host[1].node.name}"
    else:
        who = f"Process {0 if progress is None else progress.pid}"
    if progress is not None and not _may_go_on(
        f"{who} stops; run again, the job goes on where it was.", dry_run, yes
    ):
        return
    if host is not None:
        with host[0] as client:
            client.call("job.stop", {"job": queues.name_for_node(job)}, is_read=False)
        click.echo(f"node {host[1].node.name} has stopped it")
        return
    pid = runs.stop_job(job)
    click.echo(f"process {pid} has stopped")


@job.command("dead-letters")
@_job
@_store
@_config
@click.option("--limit", default=100, show_default=True, help="How many to show.")
@_json
def dead_letters(
    job: Path, store: str | None, config: Path | None, limit: int, as_json: bool
) -> None:
    """List segments that could not be done, with the reason.

    \b
    Example:
      postroad job dead-letters clearing.toml --json
    """
    letters = asyncio.run(admin.dead_segments(job, _location(job, store, config), limit))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(letters)).decode())
        return
    for it in letters:
        click.echo(f"{it.id}  {it.failed_task}: {it.error} ({it.attempts} attempts)")
        click.echo(f"    {it.segment!r}")
    click.echo(f"{len(letters):,} dead")


@job.command()
@_job
@_store
@_config
@_segment
@_all
@_dry_run
def retry(
    job: Path,
    store: str | None,
    config: Path | None,
    id: str | None,
    is_all: bool,
    dry_run: bool,
) -> None:
    """Retry dead letters: at once if the job runs, else the next time it does.

    \b
    Example: after the function was repaired
      postroad job retry clearing.toml --all
    """
    where = _location(job, store, config)
    count = _count(job, where, id, is_all)
    if dry_run:
        click.echo(f"Nothing is done. {tell_count(count, 'segment')} would be retried.")
        return
    count = asyncio.run(admin.retry_dead(job, where, id))
    click.echo(f"{tell_count(count, 'segment')} to be retried")


@job.command()
@_job
@_store
@_config
@_segment
@_all
@_dry_run
@_yes
def drop(
    job: Path,
    store: str | None,
    config: Path | None,
    id: str | None,
    is_all: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Drop dead letters.

    \b
    Example:
      postroad job drop clearing.toml 00ff00ff00ff00ff
    """
    where = _location(job, store, config)
    count = _count(job, where, id, is_all)
    told = f"Dropped segments are gone for good. It touches {tell_count(count, 'segment')}."
    if not _may_go_on(told, dry_run, yes):
        return
    count = asyncio.run(admin.drop_dead(job, where, id))
    click.echo(f"{tell_count(count, 'segment')} dropped")


def _count(job: Path, store: str | None, id: str | None, is_all: bool) -> int:
    """How many dead segments are meant."""
    if (id is None) == (not is_all):
        raise click.UsageError("Give the id of one, or --all.")
    count = asyncio.run(admin.count_dead(job, store, id))
    if id is not None and not count:
        missing = NotFound(f"there is no dead segment {id}")
        missing.add_note(f"postroad job dead-letters {shlex.quote(str(job))}")
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
