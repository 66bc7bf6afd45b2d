"""The process that fuzzes one target: `python -m fuzz.child NAME [libFuzzer options]`.

Only what is imported inside the block below is watched for coverage, so this module imports nothing
of the package before.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

WATCHED = ["postroad.core", "postroad.wire"]


def main() -> None:
    """Write the seeds into the corpus, the first option, then fuzz until time is up."""
    _, name, corpus, *options = sys.argv
    with atheris.instrument_imports(include=WATCHED):
        from fuzz.targets import TARGETS
    target = TARGETS[name]
    for number, seed in enumerate(target.seeds):
        Path(corpus, f"seed-{number}").write_bytes(seed)
    atheris.Setup([name, corpus, f"-max_len={target.bytes_max}", *options], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
