"""`postroad export`: what services and operations take and give, for other programs."""

from __future__ import annotations

import json
from typing import Any

import click

from .helping import Group, argument
from .places import PlacedCommand, open_desk, take_place


@click.group(cls=Group)
def export() -> None:
    """Describe services, queues and operations for other programs.

    \b
    Example: documents of a program, without running it, and of a node that runs
      postroad export asyncapi shop:Orders > orders.json
      postroad export openapi > operations.json
    """


@export.command()
@argument("target", metavar="MODULE[:NAME]", help="Where the services are, as app:Shop.")
@click.option("--title", default="Services", show_default=True, help="Of the document.")
@click.option("--version", default="1.0.0", show_default=True, help="Of what it describes.")
def asyncapi(target: str, title: str, version: str) -> None:
    """Print the AsyncAPI document of services and typed queues, and what they take and give.

    MODULE:NAME is a service, its class, a broker, or a list of them; MODULE alone stands for all
    services that a node would run of it, and its typed queues. The module
    is imported, and runs as it does then.

    \b
    Example:
      postroad export asyncapi shop:broker --title Shop --version 2.1.0
    """
    from postroad.admin.services import describe_services

    click.echo(describe_services(target, title=title, version=version))


@export.command()
def openapi() -> None:
    """Print the OpenAPI document of the HTTP API that every node has.

    \b
    Example:
      postroad export openapi > operations.json
    """
    from postroad.admin.http.openapi import make_document

    click.echo(json.dumps(make_document(), indent=2, ensure_ascii=False))


@export.command(cls=PlacedCommand)
@argument("service", required=False, help="Only actions of one; of all by default.")
def jsonschema(service: str | None, **given: Any) -> None:
    """Print what the actions of a running node take, as JSON Schema by name.

    \b
    Example:
      postroad export jsonschema orders
    """
    said = {} if service is None else {"service": service}
    with open_desk(take_place(given)) as desk:
        actions = desk.do("service.actions", said)
    schemas = {it["name"]: it["schema"] for it in actions}
    click.echo(json.dumps(schemas, indent=2, ensure_ascii=False))


@export.command(cls=PlacedCommand)
def mermaid(**given: Any) -> None:
    """Print the map of a running cluster for Mermaid.

    \b
    Example:
      postroad export mermaid > cluster.mmd
    """
    from .drawing import draw_mermaid

    with open_desk(take_place(given)) as desk:
        drawn = desk.do("cluster.map", {})
    click.echo(draw_mermaid(drawn))
