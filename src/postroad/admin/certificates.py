"""A development trust root and the node certificates it signs, kept as files in one directory.

Layout: ``ca.pem`` and ``ca.key`` for the root, ``<node>.pem`` and ``<node>.key`` for each node.
Called by `postroad certs`, by tests and by the demo. Invariant: a private key is never readable
by other users, not even for a moment, and no existing file changes unless `force` is given.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from postroad.core.errors import ConfigError, MissingExtraError
from postroad.core.names import validate_node_name
from postroad.net.owned_files import make_private_directory

from .publishing import NewFile, publish

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cryptography.x509 import Certificate

    from . import signing

ROOT_NAME = "Postroad development root"
ROOT_DAYS = 3650
NODE_DAYS = 397  # The longest life that browsers and strict verifiers accept for a server.
DAYS_MAX = 36_500  # Keeps every expiry far below year 9999, where certificate dates end.
ROOT_NAME_CHARACTERS_MAX = 64  # ub-common-name, RFC 5280 appendix A.1.
NODE_NAME_CHARACTERS_MAX = 251  # A file name of 255 characters, less the suffix ".pem".
PEM_BYTES_MAX = 1 << 20

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)
_PRIVATE_MODE = 0o600
_PUBLIC_MODE = 0o644
_OTHERS = 0o077


class TrustRoot(msgspec.Struct, frozen=True, kw_only=True):
    """The files and facts of a trust root."""

    name: str
    certificate: Path
    key: Path
    expires: datetime
    fingerprint: str


class NodeCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """The files and facts of one node; `certificate`, `key` and `ca` are what TLS needs."""

    node: str
    certificate: Path
    key: Path
    ca: Path
    names: tuple[str, ...]
    expires: datetime
    fingerprint: str


class CertificateStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One certificate file as found; without problems it is usable."""

    file: Path
    subject: str
    names: tuple[str, ...]
    expires: datetime | None
    days_left: int | None
    problems: tuple[str, ...]


def create_root(
    directory: str | os.PathLike[str],
    *,
    name: str = ROOT_NAME,
    days: int = ROOT_DAYS,
    force: bool = False,
    now: datetime | None = None,
) -> TrustRoot:
    """Make a trust root in `directory`, creating the directory when it is missing.

    With `force` an existing root is replaced, and every certificate it signed stops verifying.

    Raises:
        ConfigError: the name or the days are unusable, a root exists, or writing failed.
        MissingExtraError: the `certs` extra is not installed.
    """
    with _certs_extra():
        from . import signing
    _check_root_name(name)
    root = signing.make_root(name, days=_check_days(days), now=now or datetime.now(UTC))
    files = _root_files(Path(directory))
    _make_directory(Path(directory))
    _write_identity(root, *files, force=force)
    return TrustRoot(
        name=name,
        certificate=files[0],
        key=files[1],
        expires=signing.expiry_of(root.certificate),
        fingerprint=signing.fingerprint_of(root.certificate),
    )


def issue(
    directory: str | os.PathLike[str],
    node: str,
    *,
    hosts: Sequence[str] = (),
    days: int = NODE_DAYS,
    force: bool = False,
    now: datetime | None = None,
) -> NodeCertificate:
    """Issue a certificate for `node`, good for both ends of a connection.

    The node name comes first among the alternative names; `hosts` adds host names and IP
    addresses for clients that verify the address they dial. The certificate ends with its root
    if that is sooner than `days`.

    Raises:
        ConfigError: a name, host or the days are unusable, the root is missing, broken or
            expired, the node has files already, or writing failed.
        MissingExtraError: the `certs` extra is not installed.
    """
    with _certs_extra():
        from . import signing
    moment = now or datetime.now(UTC)
    alternatives = _alternatives(_check_certificate_name(node), hosts)
    days = _check_days(days)
    root = _load_root(Path(directory), moment)
    names = [
        signing.dns_name(name) if isinstance(name, str) else signing.ip_name(name)
        for name in alternatives
    ]
    identity = signing.make_node(root, names, node=node, days=days, now=moment)
    files = _node_files(Path(directory), node)
    _write_identity(identity, *files, force=force)
    return NodeCertificate(
        node=node,
        certificate=files[0],
        key=files[1],
        ca=_root_files(Path(directory))[0],
        names=signing.names_of(identity.certificate),
        expires=signing.expiry_of(identity.certificate),
        fingerprint=signing.fingerprint_of(identity.certificate),
    )


def inspect_certificates(
    directory: str | os.PathLike[str], *, now: datetime | None = None
) -> list[CertificateStatus]:
    """Describe every ``.pem`` file in `directory`, the root first.

    Raises:
        ConfigError: the directory cannot be read.
        MissingExtraError: the `certs` extra is not installed.
    """
    with _certs_extra():
        from . import signing
    root_file = _root_files(Path(directory))[0]
    try:
        files = sorted(path for path in Path(directory).iterdir() if path.suffix == ".pem")
    except OSError as error:
        raise ConfigError(f"cannot read the directory {directory}: {error.strerror}") from error
    try:
        root = signing.read_certificate(_read(root_file))
    except (OSError, ValueError):
        root = None
    files.sort(key=lambda path: path != root_file)
    return [_status(path, root, now or datetime.now(UTC)) for path in files]


def expiry_of_file(path: str | Path) -> datetime | None:
    """When the certificate in a file expires; None if that cannot be told here."""
    try:
        with _certs_extra():
            from . import signing
        return signing.expiry_of(signing.read_certificate(_read(Path(path))))
    except (MissingExtraError, OSError, ValueError):
        return None


def _status(path: Path, root: Certificate | None, now: datetime) -> CertificateStatus:
    from . import signing

    try:
        certificate = signing.read_certificate(_read(path))
    except (OSError, ValueError):
        return CertificateStatus(
            file=path,
            subject="",
            names=(),
            expires=None,
            days_left=None,
            problems=("not a readable certificate",),
        )
    left = signing.expiry_of(certificate) - now
    problems = [*_key_problems(path.with_suffix(".key"), certificate)]
    if left.total_seconds() < 0:
        problems.append("expired")
    if root is None or not signing.is_signed_by(certificate, root):
        problems.append("not signed by this root")
    return CertificateStatus(
        file=path,
        subject=signing.subject_of(certificate),
        names=signing.names_of(certificate),
        expires=signing.expiry_of(certificate),
        days_left=left.days,
        problems=tuple(problems),
    )


def _key_problems(path: Path, certificate: Certificate) -> Iterator[str]:
    from . import signing

    try:
        key = signing.read_key(_read(path))
        if not signing.belongs(certificate, key):
            yield "key does not match"
        if path.stat().st_mode & _OTHERS and os.name == "posix":
            yield "key is open to other users"
    except FileNotFoundError:
        yield "no key here"
    except (OSError, ValueError):
        yield "key is not readable"


def _load_root(directory: Path, now: datetime) -> signing.Identity:
    from . import signing

    certificate_file, key_file = _root_files(directory)
    remake = f"make a new root with `postroad certs init --dir {directory} --force`"
    try:
        certificate = signing.read_certificate(_read(certificate_file))
        key = signing.read_key(_read(key_file))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{error.filename} is missing: make a trust root first with "
            f"`postroad certs init --dir {directory}`"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(
            f"the trust root in {directory} is unusable ({error}); {remake}"
        ) from error
    if not signing.belongs(certificate, key):
        raise ConfigError(f"{key_file} does not match {certificate_file}; {remake}")
    if not signing.is_authority(certificate):
        raise ConfigError(f"{certificate_file} is not the certificate of an authority; {remake}")
    if signing.expiry_of(certificate) <= now:
        raise ConfigError(f"{certificate_file} expired; {remake}")
    return signing.Identity(certificate, key)


def _check_days(days: int) -> int:
    if not 1 <= days <= DAYS_MAX:
        raise ConfigError(f"a certificate can live 1 to {DAYS_MAX} days, not {days}")
    return days


def _check_root_name(name: str) -> None:
    if not 1 <= len(name) <= ROOT_NAME_CHARACTERS_MAX or not name.isprintable():
        raise ConfigError(
            f"the name of a trust root has 1 to {ROOT_NAME_CHARACTERS_MAX} printable characters, "
            f"not {name!r}"
        )


def _check_certificate_name(node: str) -> str:
    """A certificate carries the name letter for letter, so it must also be a DNS-like name.

    Names outside ASCII would need the xn-- form, which is a different string from the one the
    node announces; peers compare the two exactly, so such a name is refused here.
    """
    validate_node_name(node)
    if len(node) > NODE_NAME_CHARACTERS_MAX or not _is_dns_like(node):
        raise ConfigError(
            f"the node name {node!r} cannot stand in a certificate: use at most "
            f"{NODE_NAME_CHARACTERS_MAX} ASCII letters, digits, '-' and '_' in parts of 1 to 63 "
            "separated by dots, none beginning or ending with '-'"
        )
    if node.lower() == "ca":
        raise ConfigError("a node cannot be named 'ca': its files would be those of the root")
    return node


def _is_dns_like(name: str) -> bool:
    return all(_LABEL.fullmatch(label) for label in name.split("."))


def _alternatives(node: str, hosts: Sequence[str]) -> list[str | IPv4Address | IPv6Address]:
    """A node named like an address gets both forms: verifiers look for an IP entry then."""
    names: list[str | IPv4Address | IPv6Address] = [node]
    address = _address(node)
    if address is not None:
        names.append(address)
    names.extend(_check_host(host) for host in hosts)
    return list(dict.fromkeys(names))


def _check_host(host: str) -> str | IPv4Address | IPv6Address:
    address = _address(host)
    if address is not None:
        return address
    # A last part of digits only is a mistyped address: no such top-level domain exists.
    if len(host) > 253 or not _is_dns_like(host) or host.rpartition(".")[2].isdigit():
        raise ConfigError(
            f"{host!r} is neither an IP address nor an ASCII host name without wildcards"
        )
    return host


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return None if "%" in text else ip_address(text)
    except ValueError:
        return None


def _root_files(directory: Path) -> tuple[Path, Path]:
    return _node_files(directory, "ca")


def _node_files(directory: Path, node: str) -> tuple[Path, Path]:
    return directory / f"{node}.pem", directory / f"{node}.key"


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(PEM_BYTES_MAX)


def _make_directory(directory: Path) -> None:
    try:
        make_private_directory(directory)
    except OSError as error:
        if directory.is_file():
            raise ConfigError(f"{directory} is a file, not a directory") from error
        raise ConfigError(f"cannot create {directory}: {error.strerror}") from error


def _write_identity(
    identity: signing.Identity, certificate: Path, key: Path, *, force: bool
) -> None:
    files = (
        NewFile(key, identity.key_pem(), _PRIVATE_MODE),
        NewFile(certificate, identity.certificate_pem(), _PUBLIC_MODE),
    )
    try:
        publish(files, force=force)
    except FileExistsError as error:
        raise ConfigError(f"{error.filename} exists already; --force replaces it") from error
    except OSError as error:
        raise ConfigError(f"cannot write {certificate.parent}: {error.strerror}") from error


@contextmanager
def _certs_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise MissingExtraError("certs", "making certificates") from error
