"""The command line of the demo: `python -m examples.clearing`, see `--help`."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Show the demo; 0 if everything adds up, 1 if not, 130 or 143 when interrupted."""
    try:
        # Within the `try`, because Ctrl-C may come while modules are still being loaded.
        from .commandline import run_demo

        return run_demo(sys.argv[1:])
    except KeyboardInterrupt:
        return 130
    finally:
        # All is cleaned up, and the interpreter would answer Ctrl-C with a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
