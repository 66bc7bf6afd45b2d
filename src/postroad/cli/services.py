"""`postroad services`: services of a program, looked at from outside."""

from __future__ import annotations

import click

from postroad.admin.services import describe_services


@click.group()
def services() -> None:
    """Look at the services of a program.

    \b
    Example:
      postroad services asyncapi shop:Orders > orders.json
    """


@services.command()
@click.argument("target", metavar="MODULE[:NAME]")
@click.option("--title", default="Services", show_default=True, help="Of the document.")
@click.option("--version", default="1.0.0", show_default=True, help="Of what it describes.")
def asyncapi(target: str, title: str, version: str) -> None:
    """Print the AsyncAPI document of services: actions, events, and what they take and give.

    MODULE:NAME is a service, its class, a broker, or a list of them; MODULE alone stands for all
    classes of services in it. The module is imported, and runs as it does when it is imported.

    \b
    Example:
      postroad services asyncapi shop:broker --title Shop --version 2.1.0
    """
    click.echo(describe_services(target, title=title, version=version))
