"""Encoding of names as znode names."""

from hypothesis import given
from hypothesis import strategies as st

from postroad.cluster.discovery import decode_znode_name
from postroad.cluster.discovery.zookeeper_registry import encode_znode_name


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_znode_name_decodes_to_the_encoded_name(name: str) -> None:
    node = encode_znode_name(name)
    assert "/" not in node
    assert node not in ("", ".", "..")
    assert decode_znode_name(node) == name


def test_decode_znode_name_of_a_noncanonical_name_is_none() -> None:
    for node in ["C%31", "a b", "%FF", "%2e%2e", "ä"]:
        assert decode_znode_name(node) is None, node
