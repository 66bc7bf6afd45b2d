"""Packages from npm, for contenders and for tests that let other systems take part."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

INSTALL_S = 300


class NpmFailed(Exception):
    """The packages are not to be had; the text says why."""


def install(packages: Mapping[str, str], below: Path) -> Path:
    """Install packages of these versions, once, below a directory; gives where to find them.

    Whoever else looks there sees all of them or none.
    """
    versions = "-".join(f"{name}-{version}" for name, version in sorted(packages.items()))
    versions = versions.replace("/", "+")
    directory = below / versions
    if not directory.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise NpmFailed("there is no npm: apt-get install nodejs npm")
        below.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=below, prefix="installing-") as name:
            place = Path(name) / "packages"
            _install_into(place, npm, packages)
            place.rename(directory)
    return directory / "node_modules"


def _install_into(place: Path, npm: str, packages: Mapping[str, str]) -> None:
    place.mkdir()
    wanted = json.dumps({"private": True, "dependencies": dict(packages)})
    (place / "package.json").write_text(wanted, encoding="utf-8")
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    try:
        done = subprocess.run(
            command, cwd=place, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NpmFailed(f"npm did not end within {INSTALL_S} s") from None
    if done.returncode != 0:
        raise NpmFailed(f"npm says: {done.stderr[-500:]}")
