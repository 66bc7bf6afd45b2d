"""`postroad certs`: make a development trust root, issue node certificates, look at them.

Loaded by the command table in `main`. All work happens in `postroad.admin`; here are only
arguments and output.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from postroad import admin

from .helping import Group, argument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EXPIRES_SOON_DAYS = 30

_HEADINGS = ("FILE", "SUBJECT", "NAMES", "EXPIRES", "DAYS LEFT", "NOTES")

_directory = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path("certs"),
    show_default=True,
    help="Where the certificates are kept.",
)
_force = click.option("--force", is_flag=True, help="Replace files that exist.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def _days(default: int) -> Callable[[Any], Any]:
    return click.option(
        "--days", type=int, default=default, show_default=True, help="How long it is valid."
    )


@click.group(cls=Group)
def certs() -> None:
    """Make and inspect certificates for development clusters.

    Nodes that use TLS prove their names to each other with certificates of one trust root. These
    commands are such a root for development and tests; a production cluster gets its certificates
    from your own authority.

    \b
    Example: a root, two nodes, and what there is now
      postroad certs init
      postroad certs issue n1 n2
      postroad certs show
    """


@certs.command()
@_directory
@click.option("--name", default=admin.ROOT_NAME, show_default=True, help="Name of the root.")
@_days(admin.ROOT_DAYS)
@_force
@_json
def init(directory: Path, name: str, days: int, force: bool, as_json: bool) -> None:
    """Make a trust root: DIR/ca.pem, and its private key DIR/ca.key.

    Give ca.pem to every node. Keep ca.key where certificates are issued: whoever has it can pose
    as any node.

    \b
    Example:
      postroad certs init --dir certs --name "Team cluster"
    """
    root = admin.create_root(directory, name=name, days=days, force=force)
    if as_json:
        _print_json(root)
        return
    click.echo(f"Wrote {root.certificate}: trust root {root.name!r}, valid until {root.expires:%F}")
    click.echo(f"Wrote {root.key}: its private key; no node needs it")
    if force:
        click.echo("Certificates issued by an earlier root no longer verify: issue them again.")
    click.echo(f"Next: postroad certs issue n1 n2 --dir {_quoted(directory)}")


@certs.command()
@argument("nodes", metavar="NODE...", nargs=-1, required=True, help="Names of nodes.")
@_directory
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="A host name or IP address that the certificates shall name too; may be repeated.",
)
@_days(admin.NODE_DAYS)
@_force
@_json
def issue(
    nodes: Sequence[str],
    directory: Path,
    hosts: Sequence[str],
    days: int,
    force: bool,
    as_json: bool,
) -> None:
    """Issue certificates: DIR/NODE.pem and DIR/NODE.key for each NODE.

    A certificate is for one node: its name must be the name the node is started with. Node-to-node
    connections need no --host; it is for clients that verify the host they connect to.

    \b
    Examples:
      postroad certs issue n1 n2
      postroad certs issue gateway --host localhost --host 127.0.0.1
    """
    written: list[admin.NodeCertificate] = []
    try:
        for node in nodes:
            certificate = admin.issue(directory, node, hosts=hosts, days=days, force=force)
            written.append(certificate)
            if not as_json:
                click.echo(_written(certificate))
    finally:
        # Also when a later node fails: the files of the earlier ones are there.
        if as_json:
            _print_json(written)
    if not as_json:
        click.echo("Next: name its files in the postroad.toml of each node, for example")
        click.echo(_usage(written[0]))


@certs.command()
@_directory
@_json
def show(directory: Path, as_json: bool) -> None:
    """List the certificates in DIR and what is wrong with them.

    \b
    Examples:
      postroad certs show
      postroad certs show --json
    """
    found = admin.inspect_certificates(directory) if directory.exists() else []
    if as_json:
        _print_json(found)
    elif found:
        _print_table([_HEADINGS, *map(_row, found)])
    else:
        click.echo(f"No certificates in {directory}.")
        click.echo(f"Next: postroad certs init --dir {_quoted(directory)}")


def _written(node: admin.NodeCertificate) -> str:
    names = ", ".join(node.names)
    return f"Wrote {node.certificate} and {node.key}: for {names}, valid until {node.expires:%F}"


def _usage(node: admin.NodeCertificate) -> str:
    files = {"certificate": node.certificate, "key": node.key, "ca": node.ca}
    lines = ["[node]", f"name = {_toml(node.node)}", "[tls]"]
    lines += [f"{setting} = {_toml(str(path))}" for setting, path in files.items()]
    return "\n".join(f"    {line}" for line in lines)


def _toml(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _row(status: admin.CertificateStatus) -> tuple[str, ...]:
    notes = list(status.problems)
    if status.days_left is not None and 0 <= status.days_left < EXPIRES_SOON_DAYS:
        notes.append("expires soon")
    return (
        str(status.file),
        status.subject or "-",
        ", ".join(status.names) or "-",
        f"{status.expires:%F}" if status.expires else "-",
        "-" if status.days_left is None else str(status.days_left),
        ", ".join(notes) or "ok",
    )


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _print_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2))


def _quoted(directory: Path) -> str:
    return shlex.quote(str(directory))
