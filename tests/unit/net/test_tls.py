"""Certificate files that cannot be used are named, at once."""

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from postroad.core.errors import ConfigError
from postroad.net import TlsConfig


@pytest.fixture
def files(tmp_path: Path) -> Path:
    authority = trustme.CA()
    issued = authority.issue_cert("node")
    authority.cert_pem.write_to_path(str(tmp_path / "trust.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "node.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "node.key"))
    other = authority.issue_cert("other")
    other.private_key_pem.write_to_path(str(tmp_path / "other.key"))
    (tmp_path / "garbage.pem").write_bytes(b"garbage")
    (tmp_path / "empty.pem").write_bytes(b"")
    return tmp_path


def config(
    files: Path, certificate: str = "node.pem", key: str = "node.key", ca: str = "trust.pem"
) -> TlsConfig:
    return TlsConfig(certificate=files / certificate, key=files / key, ca=files / ca)


def test_contexts(files: Path) -> None:
    tls = config(files)
    server, client = tls.server_context(), tls.client_context()
    assert server.minimum_version == client.minimum_version == ssl.TLSVersion.TLSv1_3
    assert server.verify_mode == client.verify_mode == ssl.CERT_REQUIRED
    assert not client.check_hostname

    tls = TlsConfig(
        certificate=str(files / "node.pem"),
        key=str(files / "node.key"),
        ca=str(files / "trust.pem"),
        mutual=False,
    )
    assert tls.server_context().verify_mode == ssl.CERT_OPTIONAL
    assert tls.client_context().verify_mode == ssl.CERT_REQUIRED


def test_unusable_files_are_named(files: Path, subtests: pytest.Subtests) -> None:
    for field, name in [
        ("certificate", "missing.pem"),
        ("certificate", "garbage.pem"),
        ("certificate", "empty.pem"),
        ("certificate", "."),
        ("key", "missing.key"),
        ("key", "garbage.pem"),
        ("key", "other.key"),
        ("ca", "missing.pem"),
        ("ca", "garbage.pem"),
        ("ca", "empty.pem"),
        ("ca", "."),
    ]:
        with subtests.test(field=field):
            tls = config(files, **{field: name})
            for make in (tls.server_context, tls.client_context):
                with pytest.raises(ConfigError) as caught:
                    make()
                assert str(files / name) in str(caught.value)

    for field, name, reason in [
        ("key", "other.key", "the key belongs to another certificate"),
        ("key", "garbage.pem", "one of them is not in PEM format"),
        ("key", "locked.key", "the key is encrypted; provide an unencrypted one"),
        ("key", "missing.key", "missing.key: No such file or directory"),
        ("ca", "garbage.pem", "there is no certificate in it"),
    ]:
        with subtests.test(field=field):
            key = serialization.load_pem_private_key((files / "node.key").read_bytes(), None)
            locked = key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"secret"),
            )
            (files / "locked.key").write_bytes(locked)
            with pytest.raises(ConfigError) as caught:
                config(files, **{field: name}).server_context()
            assert str(caught.value).endswith(reason)
