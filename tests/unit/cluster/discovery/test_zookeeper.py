"""ZooKeeper discovery without a server."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.cluster.discovery import ZooKeeperDiscovery, decode_znode_name
from postroad.cluster.discovery.zookeeper_registry import encode_znode_name
from postroad.core.errors import MissingExtraError


def test_zookeeper_discovery_without_the_extra_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "postroad.cluster.discovery.zookeeper_session", raising=False)
    monkeypatch.setitem(sys.modules, "kazoo", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[zookeeper\]'"):
        ZooKeeperDiscovery("127.0.0.1:2181", "demo")


def test_zookeeper_discovery_path_encodes_root_and_cluster(subtests: pytest.Subtests) -> None:
    for cluster, root, members in [
        ("demo", "/postroad", "/postroad/demo/members"),
        ("demo", "/", "/demo/members"),
        ("demo", "/a/b/", "/a/b/demo/members"),
        ("a/b", "/r", "/r/a%2Fb/members"),
        ("..", "/r", "/r/%2E%2E/members"),
        ("v1.2", "/r", "/r/v1.2/members"),
        ("", "/r", "/r/%/members"),
        ("ä\0", "/r", "/r/%C3%A4%00/members"),
    ]:
        with subtests.test(cluster=cluster):
            discovery = ZooKeeperDiscovery("127.0.0.1:2181", cluster, root)
            assert repr(discovery) == (
                f"<ZooKeeperDiscovery ZooKeeper 127.0.0.1:2181 {members} [not started]>"
            )


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_znode_name_decodes_to_the_encoded_name(name: str) -> None:
    node = encode_znode_name(name)
    assert "/" not in node
    assert node not in ("", ".", "..")
    assert decode_znode_name(node) == name


def test_decode_znode_name_of_a_noncanonical_name_is_none() -> None:
    for node in ["C%31", "a b", "%FF", "%2e%2e", "ä"]:
        assert decode_znode_name(node) is None, node
