"""`postroad flow export` and `postroad flow verify`: recorded histories with the code of today."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import msgspec

from postroad.admin.histories import (
    FlowReport,
    FlowStatus,
    ReplayResult,
    export_histories,
    list_ids,
    verify_histories,
)

from .helping import Command, argument
from .main import EXIT_FAILED, EXIT_OK
from .places import PlacedCommand, open_desk, take_place
from .rendering import print_json
from .screen import progress, visible
from .values import tell_count

_SUITE = "postroad flow verify"
# What XML cannot say.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@click.command("export", cls=PlacedCommand)
@argument("target", metavar="FILE|DIR", help="Where to; a directory gets a file for each flow.")
@click.option("--name", help="Only flows of this name.")
@click.option(
    "--status",
    type=click.Choice([status.value for status in FlowStatus]),
    help="Only those of this status.",
)
@click.option("--where", multiple=True, help="Only those with this attribute, as 'amount>=5'.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="How many at most, the newest first.",
)
def export(
    target: str,
    name: str | None,
    status: str | None,
    where: Sequence[str],
    limit: int,
    **given: Any,
) -> int:
    """Write recorded histories of flows into a file, for `postroad flow verify`.

    The file has a line for each step: what it was can be read, what it returned is in base64. It
    tells all that the flows were given and did, so keep it as you keep the store. A `-` stands for
    the standard output.

    \b
    Example: the newest flows of a node, and those that run in a store
      postroad flow export histories.jsonl --limit 500
      postroad flow export running.jsonl --status running --store alpha.db
    """
    chosen = {"name": name, "status": status, "where": [*where]}
    with open_desk(take_place(given)) as desk:
        ids = list_ids(desk.do, {key: value for key, value in chosen.items() if value}, limit)
        flows, steps = export_histories(
            desk.do, progress(ids, len(ids), "export"), target, _tell_skipped
        )
    click.echo(f"{tell_count(flows, 'flow')} with {tell_count(steps, 'step')} exported.", err=True)
    return EXIT_OK


def _tell_skipped(reason: str) -> None:
    click.echo(f"postroad: left out: {visible(reason)}", err=True)


@click.command("verify", cls=Command)
@argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE|DIR...",
    type=click.Path(exists=True, allow_dash=True),
    help="What `postroad flow export` wrote; of a directory all files *.jsonl.",
)
@click.option("--app", required=True, metavar="FILE|MODULE", help="The program of today.")
@click.option(
    "--junit",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write the result there as JUnit XML.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def verify(files: Sequence[str], app: str, junit: Path | None, as_json: bool) -> int:
    """Replay exported flows with the code of today, and tell which could not go on with it.

    The program is imported and the code of its flows runs; steps do not, nothing is sent or stored.
    Exits with 0 if each flow is followed to the end of its history, and with 1 if one is changed
    (the code asks for something else), its name has no code, its arguments do not fit, or it
    cannot be read.

    \b
    Example: in continuous integration
      postroad flow verify histories.jsonl --app app.py --junit flows.xml
    """
    reports = verify_histories(files, app)
    if junit is not None:
        write_junit(junit, reports)
    if as_json:
        print_json(msgspec.to_builtins(reports))
    else:
        _tell(reports)
    return EXIT_OK if all(report.result is ReplayResult.OK for report in reports) else EXIT_FAILED


def _tell(reports: Sequence[FlowReport]) -> None:
    alike: dict[tuple[ReplayResult, str, str], list[FlowReport]] = {}
    for report in reports:
        if report.result is not ReplayResult.OK:
            alike.setdefault((report.result, report.name, report.detail), []).append(report)
    for (result, _, detail), similar in alike.items():
        more = f", and {len(similar) - 1} more" if len(similar) > 1 else ""
        click.echo(visible(f"{result}: {similar[0].label}{more}"))
        click.echo(visible(f"  {detail}".replace("\n", "\n  ")))
    counts = Counter(report.result.value for report in reports)
    parts = [f"{counts[kind]} {kind.value}" for kind in ReplayResult if counts[kind]]
    click.echo(
        f"{tell_count(len(reports), 'flow')} verified"
        + (f": {', '.join(parts)}." if parts else ".")
    )


def write_junit(path: Path, reports: Sequence[FlowReport]) -> None:
    """Write reports as a test suite, with a test for each flow."""
    unreadable = sum(report.result is ReplayResult.UNREADABLE for report in reports)
    failures = sum(report.result is not ReplayResult.OK for report in reports) - unreadable
    suite = ElementTree.Element(
        "testsuite",
        name=_SUITE,
        tests=str(len(reports)),
        failures=str(failures),
        errors=str(unreadable),
    )
    for report in reports:
        case = ElementTree.SubElement(
            suite, "testcase", classname=_plain(report.name or _SUITE), name=_plain(report.label)
        )
        if report.result is not ReplayResult.OK:
            kind = "error" if report.result is ReplayResult.UNREADABLE else "failure"
            first, _, _ = report.detail.partition("\n")
            problem = ElementTree.SubElement(
                case, kind, type=report.result.value, message=_plain(first)
            )
            problem.text = _plain(report.detail)
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    try:
        ElementTree.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None


def _plain(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
