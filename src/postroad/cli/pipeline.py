"""`postroad pipeline`: jobs, drawn, run and repaired.

All work happens in `postroad.admin`; here are only arguments and output.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click
import msgspec

from postroad.admin import pipeline as admin

_PROGRESS_S = 1.0

_job = click.argument("job", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_store = click.option(
    "--store",
    metavar="PATH|URL",
    help="Where the job's account is kept; <job>.db beside its file by default.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group()
def pipeline() -> None:
    """Run pipelines whose every segment is accounted for.

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
    read = admin.read_job(job)
    click.echo(admin.explain_mermaid(read) if mermaid else admin.explain_text(read))


@pipeline.command()
@_job
@_store
@_json
def run(job: Path, store: str | None, as_json: bool) -> None:
    """Run a job in this process until its inputs have nothing more.

    Functions are imported from the current directory. Stop it with Ctrl-C and run it again: it goes
    on where it was. Exits with 1 if segments died.

    \b
    Example:
      postroad pipeline run clearing.toml
    """
    sys.path.insert(0, str(Path.cwd()))
    counts = asyncio.run(_run(job, store))
    dead = asyncio.run(admin.count_dead(job, store))
    if as_json:
        told = {"acked": counts.acked, "failed": counts.failed, "dead": dead}
        click.echo(msgspec.json.encode(told))
    else:
        click.echo(f"{counts.acked:,} acknowledged, {counts.failed:,} failures, {dead:,} dead")
    if dead:
        raise click.exceptions.Exit(1)


async def _run(job: Path, store: str | None) -> admin.Counts:
    showing: asyncio.Task[None] | None = None

    def show(runner: admin.LocalRunner) -> None:
        nonlocal showing
        showing = asyncio.get_running_loop().create_task(_show_progress(runner))

    try:
        return await admin.run_here(job, store, show)
    finally:
        if showing is not None:
            showing.cancel()


async def _show_progress(runner: admin.LocalRunner) -> None:
    while True:
        await asyncio.sleep(_PROGRESS_S)
        counts = runner.desk.counts
        click.echo(
            f"{counts.delivered:,} delivered, {counts.acked:,} acknowledged,"
            f" {counts.failed:,} failures, {counts.batches:,} batches",
            err=True,
        )


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
@click.argument("id", required=False)
@click.option("--all", "is_all", is_flag=True, help="All of them.")
def replay(job: Path, store: str | None, id: str | None, is_all: bool) -> None:
    """Have dead segments come again the next time the job runs.

    \b
    Example: after the function was repaired
      postroad pipeline replay clearing.toml --all
    """
    _check_choice(id, is_all)
    count = asyncio.run(admin.replay_dead(job, store, id))
    _tell(count, id, "come again")


@pipeline.command()
@_job
@_store
@click.argument("id", required=False)
@click.option("--all", "is_all", is_flag=True, help="All of them.")
@_yes
def drop(job: Path, store: str | None, id: str | None, is_all: bool, yes: bool) -> None:
    """Forget dead segments.

    \b
    Example:
      postroad pipeline drop clearing.toml 00ff00ff00ff00ff
    """
    _check_choice(id, is_all)
    if is_all and not yes:
        click.confirm("Forget all dead segments of the job?", abort=True)
    count = asyncio.run(admin.drop_dead(job, store, id))
    _tell(count, id, "forgotten")


def _check_choice(id: str | None, is_all: bool) -> None:
    if (id is None) == (not is_all):
        raise click.UsageError("Give the id of one, or --all.")


def _tell(count: int, id: str | None, what: str) -> None:
    if id is not None and not count:
        raise click.ClickException(f"there is no dead segment {id}")
    click.echo(f"{count:,} {what}")
