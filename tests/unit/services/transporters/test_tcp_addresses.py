"""Where nodes are, and who may say so."""

import pytest

from postroad.core import Address
from postroad.core.errors import ConfigError
from postroad.services.transporters.tcp_addresses import (
    HEARSAY_MAX,
    AddressBook,
    Urls,
    plain_host,
    read_urls,
)
from tests.support.cases import each

HERE = Address("10.0.0.1", 4000)
THERE = Address("10.0.0.2", 5000)


@each(
    "tcp://10.0.0.1:4000/a,10.0.0.2:5000/b",
    "tcp://10.0.0.1:4000/a, tcp://10.0.0.2:5000/b,",
    ["10.0.0.1:4000/a", "tcp://10.0.0.2:5000/b"],
    {"a": "10.0.0.1:4000", "b": "tcp://10.0.0.2:5000"},
)
def test_urls(urls: Urls) -> None:
    assert read_urls(urls) == {"a": HERE, "b": THERE}


def test_urls_and_hosts_are_read_without_secrets() -> None:
    empty: list[Urls] = ["", "tcp://", [], {}, (), " , "]
    for urls in empty:
        assert read_urls(urls) == {}, urls
    assert read_urls("tcp://[::1]:4000/a") == {"a": Address("::1", 4000)}
    with pytest.raises(ConfigError, match="password") as caught:
        read_urls("tcp://me:sesame@10.0.0.1:4000/a")
    assert "sesame" not in str(caught.value)
    assert plain_host("::ffff:10.0.0.1") == "10.0.0.1"
    assert plain_host("::1") == "::1"
    assert plain_host("10.0.0.1") == "10.0.0.1"
    assert plain_host("some.host") == "some.host"


@each(
    ("tcp://10.0.0.1:4000", "host:port/node"),
    ("tcp://10.0.0.1:4000/", "host:port/node"),
    ("tcp://10.0.0.1:4000/a\nb", "host:port/node"),
    ("tcp://10.0.0.1/a", "host:port"),
    ("tcp://10.0.0.1:x/a", "host:port"),
    ("tcp://10.0.0.1:0/a", "port"),
    ("tcp://10.0.0.1:70000/a", "65535"),
    ("tcp://a.b:1/a,a.c:1/a", "two addresses"),
)
def test_urls_that_are_wrong(urls: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read_urls(urls)


def test_newest_address_and_port_come_first() -> None:
    book = AddressBook()
    book.describe("a", "some.host", ["10.0.0.7", "10.0.0.8"], 4000)
    hosts = ["some.host", "10.0.0.7", "10.0.0.8"]
    assert book.addresses("a") == [Address(host, 4000) for host in hosts]
    book.see("a", HERE, may_move=True)
    assert book.addresses("a")[0] == HERE
    assert len(book.addresses("a")) == 4
    book = AddressBook()
    book.describe("a", "", ["10.0.0.1"], 4000)
    book.describe("a", "", ["10.0.0.1"], 4001)
    assert book.addresses("a") == [Address("10.0.0.1", 4001)]
    book.describe("a", "", ["10.0.0.1"], None)
    assert book.addresses("a") == [Address("10.0.0.1", 4001)]


def test_what_a_user_says_is_tried_last_and_never_lost() -> None:
    """A node may not know by what address others get at it."""
    book = AddressBook()
    book.configure("a", HERE)
    assert book.addresses("a") == [HERE]
    book.describe("a", "container", ["172.17.0.2"], 4001)
    inside = [Address("container", 4001), Address("172.17.0.2", 4001)]
    assert book.addresses("a") == [*inside, HERE]
    assert book.is_at("a", HERE.host)
    book.see("a", THERE, may_move=True)
    assert book.addresses("a")[0] == THERE
    assert book.addresses("a")[-1] == HERE


def test_node_that_moved_is_not_sought_where_it_was_seen() -> None:
    book = AddressBook()
    book.see("a", HERE, may_move=True)
    book.describe("a", "old.host", [], 4000)
    book.describe("a", "old.host", ["10.0.0.9"], 4000)
    assert book.addresses("a")[0] == HERE
    book.describe("a", "new.host", ["10.0.0.2"], 4000)
    assert book.addresses("a") == [Address("new.host", 4000), Address("10.0.0.2", 4000)]


def test_claim_counts_only_when_the_node_is_missed() -> None:
    book = AddressBook()
    book.see("a", HERE, may_move=True)
    book.see("a", THERE, may_move=False)
    assert book.addresses("a") == [HERE]
    book.miss("a")
    assert book.addresses("a") == [THERE]
    book.miss("a")
    assert book.addresses("a") == [THERE]
    book = AddressBook()
    book.see("a", HERE, may_move=True)
    book.see("a", HERE, may_move=False)
    book.miss("a")
    assert book.addresses("a") == [HERE]
    book = AddressBook()
    book.see("a", HERE, may_move=True)
    book.see("a", THERE, may_move=False)
    book.see("a", HERE, may_move=True)
    book.miss("a")
    assert book.addresses("a") == [HERE]


def test_known_and_configured_nodes_are_kept() -> None:
    book = AddressBook()
    assert not book.is_at("a", "10.0.0.1")
    book.see("a", HERE, may_move=True)
    assert book.is_at("a", "10.0.0.1")
    assert not book.is_at("a", "10.0.0.2")
    book.describe("a", "", ["10.0.0.2"], 1)
    assert book.is_at("a", "10.0.0.2")
    book = AddressBook()
    book.configure("a", HERE)
    book.see("b", HERE, may_move=True)
    for node_id in ("a", "b", "c"):
        book.forget(node_id)
    assert [*book] == ["a"]
    assert book.addresses("b") == []


def test_book_has_room_for_so_many_nodes() -> None:
    book = AddressBook()
    book.configure("configured", HERE)
    book.see("described", HERE, may_move=True)
    book.describe("described", "", ["10.0.0.1"], 4000)
    for number in range(HEARSAY_MAX + 5):
        assert book.see(f"n{number}", HERE, may_move=True)
    assert len(book) == HEARSAY_MAX + 2
    assert "configured" in book
    assert "described" in book
    assert "n4" not in book
    assert "n5" in book
    book = AddressBook(peers_max=2)
    book.describe("a", "", ["10.0.0.1"], 1)
    book.see("b", HERE, may_move=True)
    assert book.see("c", HERE, may_move=True)
    assert [*book] == ["a", "c"]
    book.describe("d", "", ["10.0.0.1"], 1)
    assert [*book] == ["a", "d"]
    assert not book.see("e", HERE, may_move=True)
    book.describe("e", "", ["10.0.0.1"], 1)
    assert [*book] == ["a", "d"]
    for node_id in ("", "a\nb", "x" * 256):
        book = AddressBook()
        assert not book.see(node_id, HERE, may_move=True), node_id
        assert len(book) == 0, node_id
