"""`postroad bridge run`: the bridges of a node as a process of their own."""

from __future__ import annotations

from pathlib import Path

import click

from postroad.admin import mail
from postroad.node.settings import read_secret_file

from .helping import Command


@click.command("run", cls=Command)
@click.option("--cluster", required=True, help="Name of the cluster.")
@click.option("--node", required=True, help="Name of the node whose mail is carried.")
@click.option("--node-address", required=True, metavar="HOST:PORT", help="Where the node is.")
@click.option("--store", required=True, metavar="PATH|URL", help="The store of that node.")
@click.option("--bind", default="127.0.0.1:0", show_default=True, help="Where to listen.")
@click.option("--certs", type=click.Path(path_type=Path), help="Directory with certificates.")
@click.option("--secret-file", metavar="PATH", help="File with the secret of the cluster.")
@click.option("--take-over", is_flag=True, help="Go on although another bridge has the store.")
def run(
    cluster: str,
    node: str,
    node_address: str,
    store: str,
    bind: str,
    certs: Path | None,
    secret_file: str | None,
    take_over: bool,
) -> None:
    """Carry the mail of a node, as a process of its own.

    The node runs with its own bridges off and keeps its mail in a store that both can reach. This
    process has the name NODE.bridge; with TLS it needs a certificate of that name. One bridge at a
    time works on a store: a second one is refused, or with --take-over the first one stops.

    \b
    Example:
      postroad bridge run --cluster demo --node alpha --node-address 10.0.0.1:26502 --store alpha.db
    """
    tls = None
    if certs is not None:
        name = f"{node}.bridge"
        tls = mail.TlsConfig(
            certificate=certs / f"{name}.pem", key=certs / f"{name}.key", ca=certs / "ca.pem"
        )
    settings = mail.BridgeSettings(
        cluster=cluster,
        node=node,
        node_address=node_address,
        store=store,
        bind=bind,
        tls=tls,
        secrets=() if secret_file is None else read_secret_file(secret_file),
        take_over=take_over,
    )
    mail.run(
        mail.run_bridge(
            settings,
            lambda address, token: click.echo(
                f"Carrying the mail of {node} from {address}, token {token}; Ctrl-C stops."
            ),
        )
    )
