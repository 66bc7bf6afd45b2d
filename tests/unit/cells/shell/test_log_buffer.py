"""The last log lines, kept while somebody uses them."""

import logging
from collections.abc import Iterator
from itertools import count

import pytest

from postroad.cells.shell.log_buffer import LINES_MAX, LogBuffer

_numbers = count(1)


class User:
    """Somebody who wants lines to be kept."""


FIRST, SECOND = User(), User()


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger that nobody else uses."""
    logger = logging.getLogger(f"pinboard-test-{next(_numbers)}")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger
    assert not any(isinstance(handler, LogBuffer) for handler in logger.handlers)


@pytest.fixture
def pinboard(logger: logging.Logger) -> Iterator[LogBuffer]:
    pinboard = LogBuffer(logger)
    pinboard.attach(FIRST)
    yield pinboard
    pinboard.detach(FIRST)


def texts(pinboard: LogBuffer, count: int = LINES_MAX) -> list[str]:
    return [line.partition(": ")[2] for line in pinboard.lines(count)]


def test_lines_of_a_logger_and_those_below_are_kept_short(
    pinboard: LogBuffer, logger: logging.Logger
) -> None:
    logger.info("up %d", 1)
    logging.getLogger(f"{logger.name}.part").warning("down")
    logger.debug("not logged at all")
    assert texts(pinboard) == ["up 1", "down"]
    assert f"WARNING {logger.name}.part: down" in pinboard.lines(1)[0]

    logger.info("first\nINFO forged: second")
    logger.info("x" * 10_000)
    assert texts(pinboard)[2] == "first INFO forged: second"
    assert len(pinboard.lines(1)[0]) == 1_000


def test_only_the_last_lines_are_kept(pinboard: LogBuffer, logger: logging.Logger) -> None:
    for n in range(LINES_MAX + 5):
        logger.info("%d", n)
    assert texts(pinboard)[0] == "5"
    assert len(texts(pinboard)) == LINES_MAX
    assert texts(pinboard, 2) == [str(LINES_MAX + 3), str(LINES_MAX + 4)]


def test_exceptions_are_listed_without_traceback(
    pinboard: LogBuffer, logger: logging.Logger
) -> None:
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        logger.exception("it failed")
    assert texts(pinboard) == [r"it failed (ValueError('bad\nvalue'))"]


def test_nothing_is_kept_after_the_last_user_who_puts_the_level_back(
    logger: logging.Logger,
) -> None:
    pinboard = LogBuffer(logger)
    pinboard.attach(FIRST)
    pinboard.attach(SECOND)
    logger.info("a")
    pinboard.detach(SECOND)
    assert texts(pinboard) == ["a"]
    pinboard.detach(FIRST)
    assert texts(pinboard) == []
    logger.info("b")
    assert texts(pinboard) == []

    pinboard = LogBuffer(logger)
    pinboard.attach(FIRST)
    pinboard.set_level(logging.DEBUG)
    pinboard.set_level(logging.ERROR)
    assert pinboard.levels() == [(logger.name, "error")]
    pinboard.reset_level()
    assert logger.level == logging.INFO
    pinboard.set_level(logging.DEBUG)
    pinboard.detach(FIRST)
    assert logger.level == logging.INFO


def test_warnings_are_still_seen_where_nobody_set_up_logging(
    pinboard: LogBuffer,
    logger: logging.Logger,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Without those of pytest.
    monkeypatch.setattr(logger, "handlers", [pinboard])
    logger.warning("look")
    logger.info("never mind")
    assert capsys.readouterr().err == "look\n"


def test_foreign_handler_suppresses_the_fallback_output(
    pinboard: LogBuffer, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    other = logging.NullHandler()
    logger.addHandler(other)
    logger.warning("look")
    logger.removeHandler(other)
    assert capsys.readouterr().err == ""
    assert texts(pinboard) == ["look"]
