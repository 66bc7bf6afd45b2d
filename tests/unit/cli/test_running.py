"""Why a node could not be started, in one sentence with the next step."""

import errno
import os

from postroad.cli.running import explain
from postroad.core.errors import ConfigError, MissingExtraError, StoreLockedError
from tests.support.cases import each

NEXT = "choose another with --set node.bind=HOST:PORT, or admin.bind for the dashboard"


def refused(number: int) -> ConfigError:
    error = ConfigError("cannot listen on 10.0.0.1:80: [Errno …] it is long and not helpful")
    error.__cause__ = OSError(number, os.strerror(number))
    return error


@each(
    (errno.EADDRINUSE, f"another process has that port; stop it, or {NEXT}"),
    (errno.EADDRNOTAVAIL, f"this machine has no such address; {NEXT}"),
    (errno.EACCES, f"that port needs more rights; {NEXT}"),
)
def test_addresses(number: int, reason: str) -> None:
    assert explain(refused(number)) == f"cannot listen on 10.0.0.1:80: {reason}"


def test_other_reasons_have_their_next_step() -> None:
    error = refused(errno.EMFILE)
    assert explain(error) == str(error)
    locked = StoreLockedError("store a.db is used by process 7 as its node; stop that one first")
    assert explain(locked) == str(locked)
    assert explain(MissingExtraError("dashboard", "the HTTP API")) == (
        "the HTTP API needs the extra 'dashboard', which postroad was installed without: "
        "pip install '.[dashboard]' in a clone of its repository, or 'FILE.whl[dashboard]', "
        "or do without it: --set admin.enabled=no"
    )
    assert "do without" not in explain(MissingExtraError("postgres", "PostgreSQL"))
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/data")
    assert explain(denied) == (
        "/data: Permission denied; node.data says where a node keeps its files"
    )
