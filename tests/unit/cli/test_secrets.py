"""The secret that `postroad dev` makes."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from postroad.cli.secrets import FILE, find_secret, make_secret
from postroad.core.cluster_secret import check_secrets
from postroad.node.reading import Loaded, load_config


def load(data: Path, **flags: str) -> Loaded:
    given = {name.replace("__", "."): text for name, text in flags.items()}
    return load_config(None, {}, {"node.data": str(data), **given})


def test_it_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    before = os.umask(0)
    try:
        setting = make_secret(load(data))
    finally:
        os.umask(before)
    path = data / FILE
    assert setting == {"node.secret_file": str(path)}
    assert path.stat().st_mode & 0o777 == 0o600
    assert data.stat().st_mode & 0o777 == 0o700
    text = path.read_text()
    check_secrets((text.strip(),))
    assert [it.name for it in data.iterdir()] == [FILE]
    assert make_secret(load(data)) == setting
    assert path.read_text() == text
    config = load(data, node__secret_file=setting["node.secret_file"]).config
    assert config.is_closed
    assert config.node.read_secrets() == (text.strip(),)


def test_it_is_found_and_not_made_by_nodes_that_are_started_otherwise(tmp_path: Path) -> None:
    assert find_secret(load(tmp_path)) == {}
    assert list(tmp_path.iterdir()) == []
    setting = make_secret(load(tmp_path))
    assert find_secret(load(tmp_path)) == setting


def test_who_says_something_about_it_is_obeyed(tmp_path: Path) -> None:
    make_secret(load(tmp_path))
    tls = {"tls__certificate": "c", "tls__key": "k", "tls__trust": "t"}
    for given in ({"node__secret": "x" * 16}, {"node__secret_file": "f"}, tls):
        assert find_secret(load(tmp_path, **given)) == {}
        assert make_secret(load(tmp_path, **given)) == {}
    open_again = load(tmp_path, node__secret="")
    assert make_secret(open_again) == {}


def test_a_file_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_secret(load(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 65_534)
    if (tmp_path / FILE).stat().st_uid == 0:
        os.chown(tmp_path / FILE, 12_345, -1)
    with pytest.raises(click.ClickException, match="belongs to somebody else"):
        find_secret(load(tmp_path))


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises((click.ClickException, FileExistsError)):
        make_secret(load(tmp_path / "data"))
