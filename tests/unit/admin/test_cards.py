"""Cards and tokens in the data directory."""

import os
from pathlib import Path

import pytest

from postroad.admin.cards import (
    Card,
    find_cards,
    keep_token,
    leave_card,
    read_token,
    take_card,
    token_path,
)
from postroad.core.errors import ConfigError

CARD = Card(name="alpha", cluster="c", pid=os.getpid(), url="http://127.0.0.1:1", version="1")


def test_first_token_stays_and_may_be_missing(tmp_path: Path) -> None:
    data = tmp_path / "new"
    first = keep_token(data, "alpha")
    assert keep_token(data, "alpha") == first == read_token(data, "alpha")
    assert keep_token(data, "beta") != first
    assert read_token(tmp_path, "alpha") is None
    token_path(tmp_path, "alpha").write_text("\n")
    assert read_token(tmp_path, "alpha") is None


def test_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"admin\.token"):
        keep_token(tmp_path / "file", "alpha")
    with pytest.raises(ConfigError, match="cannot be written"):
        leave_card(tmp_path / "file", CARD)


def test_cards_are_found_by_name(tmp_path: Path) -> None:
    other = Card(name="beta", cluster="c", pid=1, url="http://127.0.0.1:2", version="1")
    leave_card(tmp_path, other)
    path = leave_card(tmp_path, CARD)
    assert find_cards(tmp_path) == [CARD, other]
    take_card(path, other)
    assert find_cards(tmp_path) == [CARD, other]
    take_card(path, CARD)
    assert find_cards(tmp_path) == [other]


def test_numbers_that_are_no_process(tmp_path: Path) -> None:
    for pid in (0, -1, 2**70):
        text = f'{{"name":"a","cluster":"c","pid":{pid},"url":"","version":""}}'
        (tmp_path / "a.node.json").write_text(text)
        assert find_cards(tmp_path) == [], pid
