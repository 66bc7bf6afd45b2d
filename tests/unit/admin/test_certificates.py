"""The trust root and node certificates: files, refusals, and real TLS 1.3 handshakes with them."""

from __future__ import annotations

import os
import ssl
import stat
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from postroad import admin
from postroad.admin import certificates
from postroad.core.errors import ConfigError, MissingExtraError
from tests.support.cases import naming

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)

NO_NODE_NAMES = ["", "local", "a@b", "a:b", "*", "a b", "a/b", "../x", "a\\b", "a\nb", "a\x00b"]
NO_DNS_NAMES = ["..", ".hidden", "x.", "-x", "x-", "a,b", "knödel", "x" * 64, "y." * 125 + "yy"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("root")
    admin.create_root(directory)
    admin.issue(directory, "n1")
    admin.issue(directory, "n2")
    return directory


def tls_context(purpose: int, directory: Path, node: str, trust: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(trust)
    context.load_cert_chain(directory / f"{node}.pem", directory / f"{node}.key")
    return context


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> ssl.SSLObject:
    """Connect two ends through memory and return the client's; raise what either end raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
    assert not waiting
    return ends[0]


def connect(
    directory: Path, *, server: str, name: str, client_directory: Path | None = None
) -> ssl.SSLObject:
    trust = directory / "ca.pem"
    return shake_hands(
        tls_context(ssl.PROTOCOL_TLS_CLIENT, client_directory or directory, "n1", trust),
        tls_context(ssl.PROTOCOL_TLS_SERVER, directory, server, trust),
        name,
    )


def test_handshake_is_tls_1_3_and_names_must_match(root: Path) -> None:
    client = connect(root, server="n2", name="n2")
    assert client.version() == "TLSv1.3"
    peer = client.getpeercert()
    assert peer is not None
    assert peer["subjectAltName"] == (("DNS", "n2"),)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        connect(root, server="n2", name="n3")
    stranger = ssl.create_default_context(cafile=str(root / "ca.pem"))
    server = tls_context(ssl.PROTOCOL_TLS_SERVER, root, "n2", root / "ca.pem")
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shake_hands(stranger, server, "n2")


def test_client_of_another_root_is_refused(root: Path, tmp_path: Path) -> None:
    admin.create_root(tmp_path)
    admin.issue(tmp_path, "n1")
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        connect(root, server="n2", name="n2", client_directory=tmp_path)


def test_server_of_another_root_is_refused(root: Path, tmp_path: Path) -> None:
    admin.create_root(tmp_path)
    admin.issue(tmp_path, "n2")
    client = tls_context(ssl.PROTOCOL_TLS_CLIENT, root, "n1", root / "ca.pem")
    server = tls_context(ssl.PROTOCOL_TLS_SERVER, tmp_path, "n2", root / "ca.pem")
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        shake_hands(client, server, "n2")


def test_expired_certificate_is_refused(tmp_path: Path) -> None:
    past = datetime.now(UTC) - timedelta(days=30)
    admin.create_root(tmp_path, now=past)
    admin.issue(tmp_path, "n1")
    admin.issue(tmp_path, "n2", days=1, now=past)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        connect(tmp_path, server="n2", name="n2")


def test_extra_hosts_and_unusual_node_names_verify(tmp_path: Path) -> None:
    admin.create_root(tmp_path)
    issued = admin.issue(tmp_path, "n1", hosts=["localhost", "127.0.0.1", "::1", "localhost"])
    assert issued.names == ("n1", "localhost", "127.0.0.1", "::1")
    for name in issued.names:
        assert connect(tmp_path, server="n1", name=name).version() == "TLSv1.3", name
    for node in ("10.0.0.7", "eu_1.Zone-A", "x" * 63, ".".join(["y" * 60] * 4)):
        assert admin.issue(tmp_path, node).names == (node,)
        assert connect(tmp_path, server=node, name=node).version() == "TLSv1.3", node


def test_files_and_facts_of_root_and_node(tmp_path: Path) -> None:
    made = admin.create_root(tmp_path / "deep" / "certs", name="Team root", days=10, now=NOW)
    assert made.certificate == tmp_path / "deep" / "certs" / "ca.pem"
    assert made.key == tmp_path / "deep" / "certs" / "ca.key"
    assert made.expires == NOW + timedelta(days=10)
    assert len(made.fingerprint) == 64
    assert sorted(os.listdir(made.certificate.parent)) == ["ca.key", "ca.pem"]
    admin.create_root(tmp_path, now=NOW)
    issued = admin.issue(str(tmp_path), "n1", now=NOW)
    assert (issued.node, issued.names) == ("n1", ("n1",))
    assert issued.certificate == tmp_path / "n1.pem"
    assert issued.key == tmp_path / "n1.key"
    assert issued.ca == tmp_path / "ca.pem"
    assert issued.expires == NOW + timedelta(days=397)


def test_certificate_never_outlives_its_root(tmp_path: Path) -> None:
    made = admin.create_root(tmp_path, days=5)
    assert admin.issue(tmp_path, "n1", days=90).expires == made.expires


def test_keys_are_private_and_certificates_are_not(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        admin.create_root(tmp_path)
        admin.issue(tmp_path, "n1")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "n1.key": 0o600, "n1.pem": 0o644}


@pytest.mark.parametrize("existing", ["ca.pem", "ca.key"])
def test_existing_root_is_kept(tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_text("precious")
    with pytest.raises(ConfigError, match=rf"{existing} exists already; --force replaces it"):
        admin.create_root(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {existing: "precious"}


def test_force_replaces_a_root_and_orphans_its_nodes(tmp_path: Path) -> None:
    first = admin.create_root(tmp_path)
    admin.issue(tmp_path, "n1")
    assert admin.create_root(tmp_path, force=True).fingerprint != first.fingerprint
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(tmp_path, server="n1", name="n1")
    with pytest.raises(ConfigError, match=r"n1\.key exists already"):
        admin.issue(tmp_path, "n1")
    admin.issue(tmp_path, "n1", force=True)
    connect(tmp_path, server="n1", name="n1")
    assert stat.S_IMODE((tmp_path / "n1.key").stat().st_mode) == 0o600


def test_names_that_cannot_stand_in_a_certificate_are_refused(tmp_path: Path) -> None:
    admin.create_root(tmp_path)
    for node in [*NO_NODE_NAMES, *NO_DNS_NAMES]:
        with pytest.raises(ConfigError, match="node name"):
            admin.issue(tmp_path, node)
    for node in ("ca", "CA"):
        with pytest.raises(ConfigError, match="'ca'"):
            admin.issue(tmp_path, node, force=True)
    assert len(list(tmp_path.iterdir())) == 2


def test_unusable_hosts_days_and_names_are_refused(root: Path, tmp_path: Path) -> None:
    for host in (
        "",
        "*.example.org",
        "10.0.0.256",
        "a b",
        "fe80::1%eth0",
        "[::1]",
        "höst",
        "h" * 254,
    ):
        with (
            naming(host),
            pytest.raises(ConfigError, match="neither an IP address nor an ASCII host name"),
        ):
            admin.issue(root, "n9", hosts=[host])
    for days in (0, -1, 36_501):
        with naming(days), pytest.raises(ConfigError, match=f"1 to 36500 days, not {days}"):
            admin.create_root(root, days=days, force=True)
        with naming(days), pytest.raises(ConfigError, match=f"1 to 36500 days, not {days}"):
            admin.issue(root, "n9", days=days)
    for name in ("", "x" * 65, "two\nlines"):
        with naming(name), pytest.raises(ConfigError, match="1 to 64 printable characters"):
            admin.create_root(tmp_path, name=name)


def test_missing_root_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ca\.pem is missing: .*`postroad certs init --dir "):
        admin.issue(tmp_path, "n1")
    (tmp_path / "ca.pem").mkdir()
    with pytest.raises(ConfigError, match=r"cannot read .*ca\.pem: Is a directory"):
        admin.issue(tmp_path, "n1")


def test_broken_roots_sign_nothing(tmp_path: Path, root: Path) -> None:
    made = admin.create_root(tmp_path)
    made.key.write_bytes((root / "ca.key").read_bytes())
    with pytest.raises(ConfigError, match=r"ca\.key does not match .*ca\.pem"):
        admin.issue(tmp_path, "n1")
    made.key.unlink()
    with pytest.raises(ConfigError, match=r"ca\.key is missing"):
        admin.issue(tmp_path, "n1")


def test_node_certificate_is_no_root(tmp_path: Path, root: Path) -> None:
    for suffix in ("pem", "key"):
        (tmp_path / f"ca.{suffix}").write_bytes((root / f"n1.{suffix}").read_bytes())
    with pytest.raises(ConfigError, match="not the certificate of an authority"):
        admin.issue(tmp_path, "n2")


def test_expired_root_signs_nothing(tmp_path: Path) -> None:
    admin.create_root(tmp_path, days=1, now=NOW)
    with pytest.raises(ConfigError, match=r"ca\.pem expired"):
        admin.issue(tmp_path, "n1", now=NOW + timedelta(days=1))


@pytest.mark.parametrize("broken", ["ca.pem", "ca.key"])
def test_broken_root_is_reported(tmp_path: Path, broken: str) -> None:
    admin.create_root(tmp_path)
    (tmp_path / broken).write_text("not PEM")
    with pytest.raises(ConfigError, match=r"the trust root in .* is unusable"):
        admin.issue(tmp_path, "n1")


def test_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file, not a directory"):
        admin.create_root(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"cannot create .*: Not a directory"):
        admin.create_root(tmp_path / "file" / "below")


def test_directory_that_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # File modes do not stop the superuser, as whom this test may run.
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(certificates, "publish", refuse)
    with pytest.raises(ConfigError, match=r"cannot write .*: Permission denied"):
        admin.create_root(tmp_path)


def test_missing_extra_names_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "postroad.admin.signing", raising=False)
    monkeypatch.delattr(admin, "signing", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[certs\]'"):
        admin.create_root(tmp_path / "certs")
    assert not (tmp_path / "certs").exists()


def test_inspection_of_a_sound_directory(tmp_path: Path) -> None:
    admin.create_root(tmp_path, now=NOW)
    admin.issue(tmp_path, "b", hosts=["localhost"], now=NOW)
    admin.issue(tmp_path, "a", now=NOW)
    found = admin.inspect_certificates(tmp_path, now=NOW)
    assert [status.file.name for status in found] == ["ca.pem", "a.pem", "b.pem"]
    assert [status.names for status in found] == [(), ("a",), ("b", "localhost")]
    assert [status.days_left for status in found] == [3650, 397, 397]
    assert found[0].subject == "CN=Postroad development root,O=Postroad"
    assert not any(status.problems for status in found)


def test_inspection_names_what_is_wrong(tmp_path: Path, root: Path) -> None:
    admin.create_root(tmp_path, now=NOW)
    for node in ("keyless", "mismatched", "open", "garbled"):
        admin.issue(tmp_path, node, now=NOW)
    admin.issue(tmp_path, "old", days=1, now=NOW)
    (tmp_path / "keyless.key").unlink()
    (tmp_path / "mismatched.key").write_bytes((tmp_path / "old.key").read_bytes())
    (tmp_path / "open.key").chmod(0o640)
    (tmp_path / "garbled.key").write_text("?")
    (tmp_path / "junk.pem").write_text("junk")
    (tmp_path / "stranger.pem").write_bytes((root / "n1.pem").read_bytes())
    (tmp_path / "stranger.key").write_bytes((root / "n1.key").read_bytes())
    (tmp_path / "stranger.key").chmod(0o600)
    found = admin.inspect_certificates(tmp_path, now=NOW + timedelta(days=2))
    assert {status.file.stem: status.problems for status in found} == {
        "ca": (),
        "keyless": ("no key here",),
        "mismatched": ("key does not match",),
        "open": ("key is open to other users",),
        "garbled": ("key is not readable",),
        "junk": ("not a readable certificate",),
        "old": ("expired",),
        "stranger": ("not signed by this root",),
    }


def test_inspection_of_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the directory .*: No such file"):
        admin.inspect_certificates(tmp_path / "nowhere")
