"""`postroad schema`: the types of queues, and whether two versions of them fit together."""

from __future__ import annotations

import json

import click
import msgspec

from .helping import Group, argument

_EXIT_FAILED = 1


@click.group(cls=Group)
def schema() -> None:
    """Compare the types of queues of two versions of a program.

    \b
    Example: keep the schemas of a release, and compare with them before the next one
      postroad schema dump app.py > schemas.json
      postroad schema check schemas.json app.py
    """


@schema.command()
@argument("target", metavar="PROGRAM", help="A file, a module, or module:name of a queue or type.")
def dump(target: str) -> None:
    """Print the JSON Schemas of the typed queues of a program, which is imported, not run.

    \b
    Example:
      postroad schema dump app.py > schemas.json
    """
    from postroad.admin.schemas import dump_schemas

    click.echo(dump_schemas(target))


@schema.command()
@argument("old", help="A file that `schema dump` wrote, a JSON Schema, or a program.")
@argument("new", help="Likewise.")
@click.option(
    "--mode",
    type=click.Choice(["backward", "forward", "full"]),
    default="backward",
    show_default=True,
    help="backward: NEW reads what OLD wrote; forward: OLD reads what NEW writes; full: both.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(old: str, new: str, mode: str, as_json: bool) -> int:
    """Compare two versions of the types of queues; the exit code is 1 if they do not fit together.

    Consumers that are deployed before producers need `backward`; producers first need `forward`;
    for a rolling upgrade, in which both run at a time, choose `full`.

    \b
    Example:
      postroad schema check schemas.json app.py --mode full
    """
    from postroad.admin.schemas import Mode, check_schemas

    report = check_schemas(old, new, Mode(mode))
    if as_json:
        click.echo(msgspec.json.encode(report))
    elif report.is_compatible:
        click.echo(f"compatible ({mode})")
    for each in () if as_json else report.breaks:
        click.echo(f"{each.queue or 'schema'} {each.place} ({each.direction.value}): {each.reason}")
        if each.example is not msgspec.UNSET:
            click.echo(f"  for example {json.dumps(each.example, ensure_ascii=False)}")
    return 0 if report.is_compatible else _EXIT_FAILED
