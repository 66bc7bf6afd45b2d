"""The secret of a cluster."""

from __future__ import annotations

import pytest

from postroad.core.cluster_secret import PROOF_BYTES, ClusterSecret
from postroad.core.errors import ConfigError
from postroad.core.limits import SECRET_CHARACTERS_MIN, SECRETS_MAX
from tests.support.cases import each

SECRET = "correct horse battery staple"
OTHER = "another secret of some length"


def test_cluster_secret_verify_accepts_a_proof_of_the_same_secret() -> None:
    proof = ClusterSecret("demo", SECRET).prove(b"hello", b"a", b"bc")
    assert len(proof) == PROOF_BYTES
    assert ClusterSecret("demo", SECRET).verify(proof, b"hello", b"a", b"bc")


@each(
    ("demo", OTHER, b"hello", (b"a", b"bc")),
    ("other", SECRET, b"hello", (b"a", b"bc")),
    ("demo", SECRET, b"datagram", (b"a", b"bc")),
    ("demo", SECRET, b"hello", (b"ab", b"c")),
    ("demo", SECRET, b"hello", (b"a", b"bc", b"")),
    ("demo", SECRET, b"hello", (b"a", b"bd")),
)
def test_a_proof_is_bound_to_cluster_secret_purpose_and_parts(
    cluster: str, secret: str, purpose: bytes, parts: tuple[bytes, ...]
) -> None:
    proof = ClusterSecret("demo", SECRET).prove(b"hello", b"a", b"bc")
    assert not ClusterSecret(cluster, secret).verify(proof, purpose, *parts)


def test_while_a_secret_is_changed_the_first_proves_and_all_are_accepted() -> None:
    old, new = ClusterSecret("demo", SECRET), ClusterSecret("demo", OTHER)
    both = ClusterSecret("demo", [OTHER, SECRET])
    assert both.verify(old.prove(b"x"), b"x")
    assert both.verify(new.prove(b"x"), b"x")
    assert new.verify(both.prove(b"x"), b"x")
    assert not old.verify(both.prove(b"x"), b"x")


@each(
    ("x" * (SECRET_CHARACTERS_MIN - 1),),
    ([],),
    ([SECRET, "short"],),
    ([SECRET] * (SECRETS_MAX + 1),),
    (["\udc80" * SECRET_CHARACTERS_MIN],),
    ([7],),
)
def test_check_secrets_invalid_raises(secrets: list[str]) -> None:
    with pytest.raises(ConfigError, match="secret"):
        ClusterSecret("demo", secrets)


def test_cluster_secret_repr_and_errors_never_contain_it() -> None:
    with pytest.raises(ConfigError) as caught:
        ClusterSecret("demo", "sesame")
    assert "sesame" not in str(caught.value)
    assert SECRET not in repr(ClusterSecret("demo", SECRET))
