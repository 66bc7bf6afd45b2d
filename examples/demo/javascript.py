"""What a node of Moleculer needs: Node.js, packages from npm, and a NATS server."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

PACKAGES = {"moleculer": "0.15.2", "nats": "2.29.3"}
INSTALL_TIMEOUT_S = 30.0


class LeftOut(Exception):
    """Something is not to be had; the text says what."""


@dataclass(frozen=True)
class Tools:
    """Where everything is."""

    javascript: str
    nats_server: str
    modules: str


async def find_tools() -> Tools:
    """Find the programs, and install the packages if that was never done; raises LeftOut."""
    javascript, nats_server = _find("node"), _find("nats-server")
    return Tools(javascript, nats_server, str(await _find_modules()))


def _find(program: str) -> str:
    # A server may come with a Python package, and Debian has it where only root looks.
    places = (sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath), "/usr/sbin")
    found = shutil.which(program, path=os.pathsep.join(places))
    if found is None:
        raise LeftOut(f"there is no {program} on this machine")
    return found


async def _find_modules() -> Path:
    """The packages; they are kept in the virtual environment, and installed once."""
    if sys.prefix == sys.base_prefix:
        raise LeftOut("packages of npm are kept in a virtual environment, and this is none")
    versions = "-".join(f"{name}-{version}" for name, version in PACKAGES.items())
    directory = Path(sys.prefix) / "npm-packages" / versions
    if not directory.exists():
        npm = _find("npm")
        try:
            directory.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise LeftOut(f"packages of npm cannot be kept: {error}") from None
        with TemporaryDirectory(dir=directory.parent, prefix="installing-") as name:
            place = Path(name) / "packages"
            place.mkdir()
            await _install(npm, place)
            try:
                place.rename(directory)
            except OSError:
                if not directory.exists():  # Otherwise another demo was faster.
                    raise
    return directory / "node_modules"


async def _install(npm: str, place: Path) -> None:
    wanted = {"private": True, "dependencies": PACKAGES}
    (place / "package.json").write_bytes(msgspec.json.encode(wanted))
    process = await asyncio.create_subprocess_exec(
        npm,
        *("install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"),
        *("--fetch-retries=0", "--fetch-timeout=5000"),
        cwd=place,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # npm starts programs of its own.
    )
    try:
        async with asyncio.timeout(INSTALL_TIMEOUT_S):
            _, errors = await process.communicate()
    except TimeoutError:
        raise LeftOut(f"npm did not install {_names()} in {INSTALL_TIMEOUT_S:g} s") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode != 0:
        said = errors.decode("utf-8", "replace").split("\n")[0]
        raise LeftOut(f"npm could not install {_names()}: {said:.100}")


def _names() -> str:
    return " and ".join(PACKAGES)
