"""Options, signals and exit status of the demo."""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from postroad import PostroadError

from .processes import DemoFailed
from .screen import Line, open_screen
from .story import Plan, Story

DESCRIPTION = """\
Postroad nodes in processes of their own talk over mutual TLS 1.3 on the loopback interface.
Certificates are made on the spot.

1. Requests
  alpha  keeps requests in flight to beta, as fast as answers come, and accounts for each
  beta   answers every request with its bytes reversed, and counts what it handled

In the middle of the traffic beta is killed with SIGKILL, and comes back on the same port a little
later. Requests in flight at that moment end with ConnectionClosed, outcome unknown: beta may have
handled them, so alpha does not repeat them. Requests made while beta is away end with
ConnectFailed, not sent: some callers give up, the others send theirs again with wait=True and are
answered once beta is back.

2. Durable mail
  alpha  posts payments of several accounts; each post and its row in alpha.db are one transaction
  beta   books each payment; its row in beta.db and the post of a receipt are one transaction

Both are killed with SIGKILL in turn, and come back to what their databases hold. Payments posted
while beta is away wait at alpha. What a handler had not committed when its process died is undone,
and handled again. The tables have no unique keys, so a duplicate would be seen.

3. Cells
  core-1, core-2  pass messages on; every satellite has a tunnel to both
  sat-1, sat-2    consume the queue `orders`: each call is for one of them
  sat-3           calls the queue, as fast as answers come, and publishes to the topic `prices`,
                  of which every satellite gets a copy

In the middle of the traffic core-1 is killed with SIGKILL, and comes back later. What was in it
is lost: calls end with RequestTimeout, outcome unknown, and most callers make theirs again, as
another attempt; all else goes through core-2. When core-1 is back, core-2 is restarted in good
order: it tells everybody that it leaves, passes on what it still gets, and nothing is lost.

4. Services
  desk                the core of the cells over which all nodes of this part talk; its action
                      `desk.buy` calls `quotes.price` and emits an event for each large order
  quotes-1, quotes-2  offer the service `quotes`; each call and each event is for one of them
  gate                calls `desk.buy`, as fast as answers come, reads and sends streams of 4 MiB,
                      and hears of large orders as well

In the middle of the traffic quotes-1 is killed with SIGKILL, and comes back later. What it was
asked ends with RequestTimeoutError or RequestRejectedError, outcome unknown; most callers have
their broker try again, which goes to quotes-2 sooner or later. A circuit breaker at the desk leaves
quotes-1 alone until its heartbeats are missed. In the end, if Node.js, npm and a NATS server can be
had, a node of Moleculer and one of Postroad call each other over NATS.

5. Flows
  alpha, beta  are banks that pay each other: each payment is a flow at one of them, which takes the
               money, sends the payment and waits for an answer, and a flow at the other, which
               looks at it, takes the money in and answers; what is too much is given back

Both are killed with SIGKILL in turn, and come back. The flows that were under way go on where they
were: what a step wrote and that it was done are one commit, and so are the messages that follow
from it. A teller that does not know whether it has begun a payment begins it again, under the same
name, and gets the same flow. The tables have no unique keys.

6. Clearing on Spark, if that can be had
  alpha  posts payments, some of them bad, and notes in its database which come back
  beta   runs a job on Spark, clearing.toml, which takes payments out of the queue, checks them and
         posts those that are good to alpha, with totals for each bank

beta is killed with SIGKILL while Spark works, Spark's JVM goes with it, and both are started again
on the same store and checkpoint. What Spark was at comes again. A payment is acknowledged in the
commit that takes it out of the queue and posts what came of it; bad ones fail three times and are
dead letters with their reason.
"""
EPILOG = """\
The columns of requests:
  answers/s      replies in each second
  p50, p99       half, and 99 of 100, of the requests answered then took no longer than this
  in flight      requests that wait for their answer, or for beta to come back
  connections    open connections from alpha to beta
  reconnects     connections opened again so far
  errors         errors that callers met in this second; what they were stands below

The columns of mail, counted in the databases:
  payments/s     payments posted in each second
  handled/s      payments booked
  receipts/s     receipts that came back and were filed
  ... waiting    posted and not yet handled, at either node or between them

The columns of cells:
  answers/s      replies in each second
  p50, p99       half, and 99 of 100, of the calls answered then took no longer than this
  sat-1/s, ...   calls that each consumer was given
  published/s    publications
  copies/s       copies of them that the three subscribers got
  routes         ways from a satellite to a core; six of them while both cores are there
  errors         errors that callers met in this second; what they were stands below

The columns of services:
  orders/s        orders filled in each second
  p50, p99        half, and 99 of 100, of the orders filled then took no longer than this
  quotes-1/s, ... prices that each node was asked for
  heard/s         events that came to one node of each of the two groups
  stream MB/s     what streams carried, both ways together
  nodes           nodes that gate knows; four of them while nobody is missed
  errors          errors that callers met in this second; what they were stands below

The columns of flows, counted in the databases:
  begun/s         payments whose money was taken in each second
  credited/s      payments that the other bank took in
  settled/s       payments that both banks agree on
  refused/s       payments that the other bank refused, given back
  under way       payments that were begun and have not ended

The columns of clearing:
  posted/s        payments posted in each second, counted in alpha's database
  acknowledged/s  payments that the job is done with
  cleared/s       payments that came back to alpha
  waiting         posted and neither cleared nor dead, wherever they are
  pending         payments that Spark works on
  replayed        payments that were given to Spark again so far
  dead            dead letters so far

The reconciliations at the end compare what alpha asked with what was answered, what failed and
what beta says it handled, the payments in one database with the bookings in the other, what sat-3
sent with what every satellite was given, what nodes of services asked with what others were asked,
what one bank settled with what the other credited, and the payments posted with those cleared and
with the dead letters. The exit status is 0 only if it all adds up.

NO_COLOR=1 turns colours off; into a pipe the demo writes one plain line for each second.
"""
# How long each part takes: the least, the usual, and what goes on.
_SECONDS = {
    "--seconds": (3.0, 10.0, "requests are made"),
    "--mail-seconds": (3.0, 8.0, "mail is posted"),
    "--cells-seconds": (3.0, 8.0, "calls are made and prices published"),
    "--services-seconds": (3.0, 8.0, "orders are made"),
    "--flows-seconds": (3.0, 5.0, "payments are agreed on"),
    "--clearing-seconds": (2.0, 5.0, "payments are cleared, besides starting Spark twice"),
}
# Nothing is left to read these; ending quietly is all one can do.
_READER_GONE = (errno.EPIPE, errno.EIO)


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
        prog="python -m examples.demo",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option, (least, default, what) in _SECONDS.items():
        parser.add_argument(
            option,
            type=_number(float, least, 3600),
            default=default,
            help=f"how long {what}, {least:g} to 3600 (default: {default:g})",
        )
    parser.add_argument(
        "--no-spark",
        dest="has_spark",
        action="store_false",
        help="leave out what needs Spark",
    )
    parser.add_argument(
        "--no-javascript",
        dest="has_javascript",
        action="store_false",
        help="leave out what needs Node.js",
    )
    parser.add_argument(
        "--callers",
        type=_number(int, 1, 10_000),
        default=64,
        help="requests kept in flight, 1 to 10000 (default: %(default)s)",
    )
    parser.add_argument(
        "--payload-bytes",
        type=_number(int, 8, 1_000_000),
        default=100,
        help="size of each request and reply, 8 to 1000000 (default: %(default)s)",
    )
    parser.add_argument(
        "--directory",
        type=_new_directory,
        help="a new or empty directory for databases, logs and certificates, which stay there"
        " (default: a temporary one)",
    )
    return Plan(**vars(parser.parse_args(arguments)))


def _number(kind: type[int] | type[float], least: float, most: float) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not within {least:,} and {most:,}")
        return value

    return convert


def _new_directory(text: str) -> Path:
    path = Path(text)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise argparse.ArgumentTypeError(f"{text} is there already, and not an empty directory")
    return path.resolve()
