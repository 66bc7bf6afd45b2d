"""What a search says of itself: numbers, and log lines that do not flood."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from postroad.core import ThrottledLogger

# Similar warnings are told once in so many seconds.
_WARN_INTERVAL_S = 60.0


class BackgroundDiscoveryStatistics(msgspec.Struct):
    """What is known now, and totals since the start."""

    is_connected: bool = False
    """The source answered when it was last asked."""
    is_registered: bool = False
    """This node was entered in the source when that was last looked at."""
    changes: int = 0
    """Times what is known was told."""
    failures: int = 0
    """Times the source did not answer or refused."""
    registrations: int = 0
    """Times this node was entered in the source; more than one after a lost session."""
    conflicts: int = 0
    """Times another node held this node's name in the source."""
    skipped: int = 0
    """Entries of others that could not be read."""
    last_error: str = ""
    """What went wrong last, also when it is over by now."""


class DiscoveryReporter:
    """Counts and logs what a search meets with."""

    def __init__(
        self, logger: logging.Logger, source: str, counts: BackgroundDiscoveryStatistics
    ) -> None:
        self.logger = logger
        self.source = source
        self.counts = counts
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)

    def set_connected(self, is_connected: bool) -> None:
        """Remember whether the source answers, and say so when it does again."""
        if is_connected and not self.counts.is_connected and self.counts.failures:
            self.logger.info("%s: answers again", self.source)
        self.counts.is_connected = is_connected

    def report_failure(self, key: str, text: str, *args: object) -> None:
        """Count a failure; log it, but not more often than makes sense for its key."""
        self.count_failure(text % args)
        self.warn(key, text, *args)

    def warn(self, key: str, text: str, *args: object, level: int = logging.WARNING) -> None:
        """Log something, but not more often than makes sense for its key."""
        now = asyncio.get_running_loop().time()
        self._log.log(key, now, f"%s: {text}", self.source, *args, level=level)

    def count_failure(self, error: str) -> None:
        """Remember what went wrong."""
        self.counts.failures += 1
        self.counts.last_error = error
