"""The Pythons of this machine that Postroad runs on."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@cache
def interpreters() -> dict[str, str]:
    """The path of an interpreter for each version there is: this one, or of PATH, or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    present = {}
    for version in VERSIONS:
        paths = [f"python{version}", *map(str, pyenv.glob(f"{version}.*/bin/python"))]
        if version == HERE:
            paths.insert(0, sys.executable)
        working = (path for path in paths if _version_of(path) == version)
        if (path := next(working, None)) is not None:
            present[version] = path
    return present


def _version_of(path: str) -> str | None:
    program = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", program], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
