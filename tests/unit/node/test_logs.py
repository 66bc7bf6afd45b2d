"""Lines that a node writes of itself."""

import io
import json
import logging
import re
import warnings
from collections.abc import Iterator

import pytest

from postroad.cells.shell.log_buffer import LogBuffer
from postroad.node.logs import set_up_logs
from postroad.node.settings import LogSettings

logger = logging.getLogger("postroad.probe")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before, level = [*root.handlers], root.level
    yield
    for handler in [it for it in root.handlers if it not in before]:
        root.removeHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(False)


def fail() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("it failed")


def test_text_is_one_line_and_a_failure_has_its_traceback() -> None:
    stream = io.StringIO()
    set_up_logs(LogSettings(), stream)
    logger.info("%d letters", 3)
    logger.debug("hidden")
    (line,) = stream.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} INFO    postroad\.probe: 3 letters", line)
    stream = io.StringIO()
    set_up_logs(LogSettings(), stream)
    logger.info("queue %s", "a\n00:00:00.000 ERROR postroad: all is lost\x1b[2J\r\u2028")
    first, second = stream.getvalue().split("\n")[:-1]
    assert first.endswith("INFO    postroad.probe: queue a")
    assert second == "    00:00:00.000 ERROR postroad: all is lost\\x1b[2J\\r\\u2028"
    stream = io.StringIO()
    set_up_logs(LogSettings(), stream)
    fail()
    first, second, *_, last = stream.getvalue().splitlines()
    assert first.endswith("ERROR   postroad.probe: it failed")
    assert second == "Traceback (most recent call last):"
    assert last == "ValueError: no"


def test_what_others_log_is_kept_while_a_node_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    # That of the process may still be used by nodes that a simulation killed.
    pinboard = LogBuffer(logging.getLogger("postroad"))
    monkeypatch.setattr("postroad.node.logs.LOG_BUFFER", pinboard)
    set_up_logs(LogSettings(), io.StringIO())
    set_up_logs(LogSettings(), io.StringIO())
    elsewhere = logging.getLogger("shop")
    elsewhere.info("lost")
    user = Terminal()
    pinboard.attach(user)
    elsewhere.info("open\nfor all")
    logger.info("probed")
    kept = [(it.logger, it.text) for it in pinboard.records(10)]
    pinboard.detach(user)
    assert kept == [("shop", "open for all"), ("postroad.probe", "probed")]


def test_colours_are_for_terminals_that_take_them() -> None:
    stream = Terminal()
    set_up_logs(LogSettings(), stream, {})
    logger.warning("careful")
    assert "\x1b[33mWARNING\x1b[0m" in stream.getvalue()
    for environ in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        stream = Terminal()
        set_up_logs(LogSettings(), stream, environ)
        logger.warning("careful")
        assert "\x1b" not in stream.getvalue(), environ


def test_json() -> None:
    stream = Terminal()
    set_up_logs(LogSettings(format="json"), stream)
    logger.info("two\nlines", extra={"flow": "f1", "at": object})
    fail()
    first, second = (json.loads(it) for it in stream.getvalue().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "at": str(object),
        "flow": "f1",
        "level": "info",
        "logger": "postroad.probe",
        "message": "two\nlines",
    }
    assert second["level"] == "error"
    assert second["error"].endswith("ValueError: no")


def test_level_is_that_of_the_settings_and_warnings_are_logged() -> None:
    stream = io.StringIO()
    set_up_logs(LogSettings(level="error"), stream)
    logger.warning("hidden")
    set_up_logs(LogSettings(level="debug"), stream)
    logger.debug("shown")
    assert [it.rpartition(": ")[2] for it in stream.getvalue().splitlines()] == ["shown"]
    stream = io.StringIO()
    set_up_logs(LogSettings(), stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old ways", stacklevel=1)
    assert "py.warnings:" in stream.getvalue()
    assert "old ways" in stream.getvalue()
