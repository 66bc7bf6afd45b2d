"""Why a node could not be started, in one sentence with the next step."""

from __future__ import annotations

import errno
import os

import pytest

from postroad.cli.running import explain
from postroad.core.errors import ConfigError, MissingExtra, StoreLocked

NEXT = "choose another with --set node.bind=HOST:PORT, or admin.bind for the dashboard"


def refused(number: int) -> ConfigError:
    error = ConfigError("cannot listen on 10.0.0.1:80: [Errno …] it is long and not helpful")
    error.__cause__ = OSError(number, os.strerror(number))
    return error


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EADDRINUSE, f"another process has that port; stop it, or {NEXT}"),
        (errno.EADDRNOTAVAIL, f"this machine has no such address; {NEXT}"),
        (errno.EACCES, f"that port needs more rights; {NEXT}"),
    ],
)
def test_addresses(number: int, reason: str) -> None:
    assert explain(refused(number)) == f"cannot listen on 10.0.0.1:80: {reason}"


def test_other_reasons_stay_as_they_are() -> None:
    error = refused(errno.EMFILE)
    assert explain(error) == str(error)
    locked = StoreLocked("store a.db is used by process 7 as its node; stop that one first")
    assert explain(locked) == str(locked)


def test_packages_that_are_not_installed() -> None:
    assert explain(MissingExtra("dashboard", "the HTTP API")) == (
        'the HTTP API needs an extra: pip install "postroad[dashboard]", '
        "or do without it: --set admin.enabled=no"
    )
    assert "do without" not in explain(MissingExtra("postgres", "PostgreSQL"))


def test_a_directory() -> None:
    error = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/data")
    assert explain(error) == (
        "/data: Permission denied; node.data says where a node keeps its files"
    )
