"""`postroad doctor`: what could keep a node from working on this machine, and what to do."""

from __future__ import annotations

import datetime
import importlib.util
import os
import resource
import shutil
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import click
import msgspec

from postroad.admin import CertificateStatus, PostroadError, inspect_certificates
from postroad.admin.cards import find_cards

from .helping import Command
from .main import EXIT_OK, EXIT_UNHEALTHY
from .places import DATA
from .rendering import print_json
from .screen import paint
from .values import tell_bytes

_FILES_MIN = 1_024
_FREE_BYTES_MIN = 512 * 1024 * 1024
_CERTIFICATE_DAYS_MIN = 30
_ADMIN_PORT = 8222
_CERTIFICATES = Path("certs")
_EXTRAS = {
    "certs": "cryptography",
    "dashboard": "starlette",
    "jetstream": "nats",
    "mqtt": "paho",
    "amqp": "aiormq",
    "postgres": "psycopg",
    "redis": "redis",
    "shell": "prompt_toolkit",
    "spark": "pyspark",
    "zookeeper": "kazoo",
    "zstd": "zstandard",
}
_CLOCK_MIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one look found."""

    name: str
    status: str
    """`ok`, `warning` or `failing`."""
    detail: str
    next: str = ""
    """What to do, if anything."""


def _ok(name: str, detail: str) -> Finding:
    return Finding(name=name, status="ok", detail=detail)


def _bad(name: str, detail: str, next: str, *, status: str = "failing") -> Finding:
    return Finding(name=name, status=status, detail=detail, next=next)


@click.command(cls=Command)
@click.option("--data", default=DATA, show_default=True, help="The data directory of nodes.")
@click.option(
    "--certs",
    type=click.Path(path_type=Path),
    help="The directory of certificates; certs by default, if there is one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def doctor(data: str, certs: Path | None, as_json: bool) -> int:
    """Look for what is wrong on this machine.

    Python, extras, ports, the data directory, stores, the clock, certificates, limits of the
    system, and nodes that run. Exits with 4 if something fails.

    \b
    Example:
      postroad doctor
    """
    if certs is None and _CERTIFICATES.is_dir():
        certs = _CERTIFICATES
    findings = [*examine(Path(data), certs)]
    if as_json:
        print_json(msgspec.to_builtins(findings))
    else:
        for it in findings:
            click.echo(f"{paint(it.status, it.status.ljust(8))} {it.name}: {it.detail}")
            if it.next:
                click.echo(f"{'':8} next: {it.next}")
    is_bad = any(it.status == "failing" for it in findings)
    return EXIT_UNHEALTHY if is_bad else EXIT_OK


def examine(data: Path, certs: Path | None) -> Iterator[Finding]:
    """Everything that was looked at, in the order people mend it."""
    yield look_at_python()
    yield look_at_extras()
    yield look_at_files()
    yield look_at_clock()
    yield look_at_port(_ADMIN_PORT, data)
    yield look_at_data(data)
    if data.is_dir():
        yield from (look_at_store(it) for it in sorted(data.glob("*.db")))
    yield from look_at_certificates(certs)
    yield look_at_nodes(data)


def look_at_python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return _ok("Python", f"{version}, {sys.executable}")


def look_at_extras() -> Finding:
    there = [name for name, module in _EXTRAS.items() if importlib.util.find_spec(module)]
    missing = [name for name in _EXTRAS if name not in there]
    told = f"installed: {', '.join(there) or 'none'}"
    if "dashboard" in missing:
        return _bad(
            "extras",
            told,
            "pip install '.[dashboard]' in a clone of its repository (for the API)",
            status="warning",
        )
    return _ok("extras", told)


def look_at_files() -> Finding:
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < _FILES_MIN:
        return _bad("open files", f"at most {limit:,}", f"ulimit -n {most}", status="warning")
    return _ok("open files", f"at most {limit:,}")


def look_at_clock() -> Finding:
    now = time.time()
    told = datetime.datetime.fromtimestamp(now).astimezone().isoformat(timespec="seconds")
    if now < _CLOCK_MIN:
        return _bad("clock", f"{told} is in the past", "set the clock, for example with chrony")
    return _ok("clock", told)


def look_at_port(port: int, data: Path) -> Finding:
    for card in find_cards(data):
        if urlsplit(card.url).port == port:
            return _ok(f"port {port}", f"used by node {card.name}")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            return _bad(
                f"port {port}",
                f"{error.strerror}: taken, maybe by a node",
                "postroad node start --set admin.bind=127.0.0.1:0",
                status="warning",
            )
    return _ok(f"port {port}", "free for the API and the dashboard")


def look_at_data(data: Path) -> Finding:
    if not data.exists():
        return _ok("data directory", f"{data} is not there yet; the first node makes it")
    if not (data.is_dir() and os.access(data, os.W_OK)):
        return _bad("data directory", f"{data} cannot be written", f"chmod u+rwx {data}")
    free = shutil.disk_usage(data).free
    if free < _FREE_BYTES_MIN:
        return _bad("data directory", f"{data}: {tell_bytes(free)} free", "free some space")
    return _ok("data directory", f"{data}, {tell_bytes(free)} free")


def look_at_store(path: Path) -> Finding:
    """Read all of a store, without taking it from a node that runs."""
    name = f"store {path.name}"
    try:
        with _reading(path) as database:
            found = [str(row[0]) for row in database.execute("PRAGMA quick_check(3)")]
    except sqlite3.Error as error:
        return _bad(name, str(error), f"postroad queue ls --store {path}")
    if found == ["ok"]:
        return _ok(name, f"sound, {tell_bytes(path.stat().st_size)}")
    return _bad(name, "; ".join(found), "restore a backup, then: postroad bridge reset PEER")


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        yield database
    finally:
        database.close()


def look_at_certificates(directory: Path | None) -> Iterator[Finding]:
    if directory is None:
        return
    try:
        found = inspect_certificates(directory)
    except PostroadError as error:
        yield _bad("certificates", str(error), "postroad certs init --help")
        return
    if not found:
        yield _bad("certificates", f"{directory} has none", "postroad certs init", status="warning")
    yield from (_judge_certificate(it) for it in found)


def _judge_certificate(it: CertificateStatus) -> Finding:
    name, again = f"certificate {it.file.name}", f"postroad certs issue {it.file.stem} --force"
    if it.problems:
        return _bad(name, "; ".join(it.problems), again)
    if it.days_left is not None and it.days_left < _CERTIFICATE_DAYS_MIN:
        return _bad(name, f"expires in {it.days_left} days", again, status="warning")
    return _ok(name, f"good for {it.days_left} days")


def look_at_nodes(data: Path) -> Finding:
    cards = find_cards(data)
    if not cards:
        return _ok("running nodes", f"none in {data}; start one with `postroad dev`")
    listed = ", ".join(f"{it.name} at {it.url}" for it in cards)
    return _ok("running nodes", listed)
