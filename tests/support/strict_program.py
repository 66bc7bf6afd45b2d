"""Runs a program as `python -W error` does: `spawn("tests.support.strict_program", path, errors)`.

What it writes to standard error goes to the file `errors`. The warm parent imports for all programs
what each of them would import.
"""

from __future__ import annotations

import os
import runpy
import sys
import warnings
from importlib import import_module

for _name in ("postroad.node", "postroad.pipeline", "postroad.testing"):
    import_module(_name)


def main() -> None:
    program, errors = sys.argv[1:]
    with open(errors, "wb") as file:
        os.dup2(file.fileno(), 2)
    warnings.simplefilter("error")
    sys.argv = [program]
    sys.path.insert(0, os.path.dirname(program))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
