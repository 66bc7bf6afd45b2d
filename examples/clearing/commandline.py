"""Options, signals and exit status of the demo."""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from postroad import PostroadError
from postroad.pipeline.spark import find_java_home
from postroad.pipeline.spark.session import require_packages

from .screen import Line, Tone, open_screen
from .stage import DemoFailed
from .story import Plan, Story

DESCRIPTION = """\
Five Postroad nodes in processes of their own, over mutual TLS 1.3 on the loopback interface. Each
is a `postroad node start`; certificates are made on the spot.

  core-1, core-2   pass messages on between the others, which know only them
  bank-a, bank-b   pay each other, from eight accounts each. For every payment a teller asks the
                   other bank whether it knows the account (a service call). Then a flow takes the
                   money, agrees on the payment with a flow of the other bank, and in the commit
                   that settles it posts it to the house (durable mail). What is too much for the
                   other bank is refused by its flow, and given back.
  house            clears payments by a job on Spark: receipts for each bank, alerts for large
                   payments, totals of each account in windows. Payments that nobody may clear
                   fail three times, and are dead letters with their reason.

house, which is also Spark's driver, bank-b and core-1 are killed with SIGKILL, one after the
other, and come back to what their databases hold. Calls fail meanwhile, each with its error.
Flows go on where they were, mail waits, and what Spark was at comes again. The tables of the banks
have no unique keys, so whatever was lost or happened twice would be seen.
"""
EPILOG = """\
The columns:
  calls/s     calls answered in each second
  begun/s     payments whose money was taken
  settled/s   payments on which both banks agree, posted to the house in the same commit
  refused/s   payments given back
  cleared/s   payments whose receipt came back to the bank
  waiting     settled, and neither cleared nor dead yet
  in job      payments that the job is working on
  replayed    payments that the job was given again so far
  dead        dead letters so far

The exit status is 0 only if it all adds up. NO_COLOR=1 turns colours off; into a pipe the demo
writes one plain line for each second.
"""
# Nothing is left to read these; ending quietly is all one can do.
_READER_GONE = (errno.EPIPE, errno.EIO)
_SECONDS_MIN, _SECONDS_MAX, _SECONDS = 5.0, 3600.0, 20.0


def run_demo(arguments: Sequence[str]) -> int:
    """Play the demo; returns the exit status."""
    plan = _parse(arguments)
    try:
        return asyncio.run(_play(plan))
    except OSError as error:
        if error.errno not in _READER_GONE:
            raise
        # Python would complain about what it cannot flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


async def _play(plan: Plan) -> int:
    stopper = _Stopper()
    screen = open_screen(sys.stdout)
    if plan.uses_spark and (missing := await asyncio.to_thread(_missing_for_spark)):
        screen.say(Line(f"The job runs without Spark: {missing}", Tone.NEWS))
        plan = Plan(seconds=plan.seconds, uses_spark=False, directory=plan.directory)
    try:
        with _directory(plan) as directory:
            return 0 if await Story(plan, screen, directory).play() else 1
    except asyncio.CancelledError:
        if stopper.received is None:
            raise
        gone = "processes and files" if plan.directory is None else "processes"
        screen.say(Line(f"Stopped by {stopper.received.name}; all {gone} are gone."))
        return 128 + stopper.received
    except (DemoFailed, PostroadError) as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1


def _missing_for_spark() -> str:
    """What a job on Spark would need here; nothing if it can run."""
    try:
        require_packages()
        find_java_home()
    except PostroadError as error:
        return str(error)
    return ""


@contextmanager
def _directory(plan: Plan) -> Iterator[Path]:
    """Where the files go."""
    if plan.directory is None:
        with TemporaryDirectory(prefix="postroad-demo-") as directory:
            yield Path(directory)
        return
    plan.directory.mkdir(parents=True, exist_ok=True)
    yield plan.directory


class _Stopper:
    """Cancels the current task on the first signal; the clean-up is not disturbed by more."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._task = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self.received is None and self._task is not None:
            self.received = number
            self._task.cancel()


def _parse(arguments: Sequence[str]) -> Plan:
    parser = argparse.ArgumentParser(
        prog="python -m examples.clearing",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=_SECONDS,
        help=f"how long payments are made, {_SECONDS_MIN:g} to {_SECONDS_MAX:g}"
        " (default: %(default)g)",
    )
    parser.add_argument(
        "--no-spark",
        dest="uses_spark",
        action="store_false",
        help="run the job in the process of the house",
    )
    parser.add_argument(
        "--directory",
        type=_new_directory,
        help="a new or empty directory for databases, logs and certificates, which stay there"
        " (default: a temporary one)",
    )
    return Plan(**vars(parser.parse_args(arguments)))


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not _SECONDS_MIN <= value <= _SECONDS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text} is not within {_SECONDS_MIN:g} and {_SECONDS_MAX:g}"
        )
    return value


def _new_directory(text: str) -> Path:
    path = Path(text)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise argparse.ArgumentTypeError(f"{text} is there already, and not an empty directory")
    return path.resolve()
