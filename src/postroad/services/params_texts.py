"""Checks of texts: plain ones, addresses of mail and of the web, UUIDs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from postroad.core.errors import ConfigError

from .js_text import js_text
from .params_checks import Check, Test, listed
from .params_schema import MISSING, Problem, Rule

_FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "u": 0, "g": 0}
_FORMS: dict[str, tuple[str, re.Pattern[str]]] = {
    "numeric": ("stringNumeric", re.compile(r"-?[0-9]+(\.[0-9]+)?")),
    "alpha": ("stringAlpha", re.compile(r"[a-zA-Z]+")),
    "alphanum": ("stringAlphanum", re.compile(r"[a-zA-Z0-9]+")),
    "alphadash": ("stringAlphadash", re.compile(r"[a-zA-Z0-9_-]+")),
    "hex": ("stringHex", re.compile(r"([0-9a-fA-F]{2})+")),
    "singleLine": ("stringSingleLine", re.compile(r"[^\n]*")),
    "base64": (
        "stringBase64",
        re.compile(r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"),
    ),
}
_SPACE = re.compile(r"\s")
_EMAIL_PRECISE = re.compile(
    r"([^<>()\[\]\\.,;:\s@\"]+(\.[^<>()\[\]\\.,;:\s@\"]+)*|\".+\")"
    r"@(\[[0-9]{1,3}(\.[0-9]{1,3}){3}\]|([a-zA-Z0-9-]+\.)+[a-zA-Z]{2,})"
)
_URL = re.compile(r"https?://\S+")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_NIL_UUID = "00000000-0000-0000-0000-000000000000"
_VARIANT_VERSIONS = "34578"

TextTest = tuple[str, Test, Any, Callable[[str], Any]]


def js_length(text: str) -> int:
    """The length JavaScript sees: characters beyond 16 bits count twice."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def compile_string(rule: Rule) -> Check:
    """A text; it is changed first, then tested."""
    options = rule.options
    converts = options.get("convert") is True
    change = _compile_changes(options)
    tests = _text_tests(options)
    empty = options.get("empty")

    def check(value: Any, field: str | None, parent: Any, problems: list[Problem]) -> Any:
        if not isinstance(value, str):
            if not converts:
                problems.append(rule.problem("string", field, value))
                return value
            value = js_text(value)
        original, value = value, change(value)
        if not value and empty is True:
            return value
        if not value and empty is False:
            problems.append(rule.problem("stringEmpty", field, value))
        for type, fits, expected, actual in tests:
            if not fits(value):
                told = actual(value if actual is js_length else original)
                problems.append(rule.problem(type, field, told, expected))
        return value

    return check


def compile_email(rule: Rule) -> Check:
    """An address of mail."""
    options = rule.options
    is_email = _is_precise_email if options.get("mode") == "precise" else _is_email
    least, most = options.get("min"), options.get("max")

    def check(value: Any, field: str | None, parent: Any, problems: list[Problem]) -> Any:
        if _is_no_text(rule, "emailEmpty", value, field, problems):
            return value
        if options.get("normalize"):
            value = value.strip().lower()
        length = js_length(value)
        if least is not None and length < least:
            problems.append(rule.problem("emailMin", field, length, least))
        if most is not None and length > most:
            problems.append(rule.problem("emailMax", field, length, most))
        if not is_email(value):
            problems.append(rule.problem("email", field, value))
        return value

    return check


def compile_url(rule: Rule) -> Check:
    """An address of the web."""

    def check(value: Any, field: str | None, parent: Any, problems: list[Problem]) -> Any:
        is_done = _is_no_text(rule, "urlEmpty", value, field, problems)
        if not is_done and not _URL.match(value):
            problems.append(rule.problem("url", field, value))
        return value

    return check


def compile_uuid(rule: Rule) -> Check:
    """A UUID, of one version if the rule names it."""
    wanted = rule.options.get("version")

    def check(value: Any, field: str | None, parent: Any, problems: list[Problem]) -> Any:
        if not isinstance(value, str):
            problems.append(rule.problem("string", field, value))
            return value
        text = value.lower()
        if not _UUID.fullmatch(text) and text != _NIL_UUID:
            problems.append(rule.problem("uuid", field, value))
        elif wanted is not None and str(wanted) != text[14]:
            problems.append(rule.problem("uuidVersion", field, int(text[14]), wanted))
        elif text[14] in _VARIANT_VERSIONS and text[19] not in "89ab":
            problems.append(rule.problem("uuid", field, value))
        return value

    return check


def _is_email(text: str) -> bool:
    """Whether there is an `@`, and a dot after it, with something before, between and after them.

    The original has an expression for this that takes very long for some texts.
    """
    at, dot = text.find("@", 1), text.rfind(".", 0, -1)
    return 0 < at < dot - 1 and _SPACE.search(text) is None


def _is_precise_email(text: str) -> bool:
    return _EMAIL_PRECISE.fullmatch(text) is not None


def _is_no_text(
    rule: Rule, type: str, value: Any, field: str | None, problems: list[Problem]
) -> bool:
    """Whether there is no text to look at, which is a problem unless the rule allows it."""
    if not isinstance(value, str):
        problems.append(rule.problem("string", field, value))
        return True
    if not value and not rule.options.get("empty"):
        problems.append(rule.problem(type, field, value))
    return not value


def _compile_changes(options: Mapping[str, Any]) -> Callable[[str], str]:
    pad = options.get("padChar")
    filler = " " if pad is None else str(pad)
    if len(filler) != 1:
        raise ConfigError(f"params schema: padChar {filler!r} must be one character")
    wanted: list[tuple[str, Callable[[str], str]]] = [
        ("trim", str.strip),
        ("trimLeft", str.lstrip),
        ("trimRight", str.rstrip),
        ("padStart", lambda text: text.rjust(int(options["padStart"]), filler)),
        ("padEnd", lambda text: text.ljust(int(options["padEnd"]), filler)),
        ("lowercase", str.lower),
        ("uppercase", str.upper),
        ("localeLowercase", str.lower),
        ("localeUppercase", str.upper),
    ]
    changes = [change for name, change in wanted if options.get(name)]

    def change_all(text: str) -> str:
        for change in changes:
            text = change(text)
        return text

    return change_all if changes else lambda text: text


def _text_tests(options: Mapping[str, Any]) -> list[TextTest]:
    """The type of problem, the test, what is expected, and what is told of the text."""
    least: Any = options.get("min")
    most: Any = options.get("max")
    length: Any = options.get("length")
    wanted: list[tuple[bool, TextTest]] = [
        (least is not None, ("stringMin", lambda it: js_length(it) >= least, least, js_length)),
        (most is not None, ("stringMax", lambda it: js_length(it) <= most, most, js_length)),
        (
            length is not None,
            ("stringLength", lambda it: js_length(it) == length, length, js_length),
        ),
    ]
    tests = [test for is_wanted, test in wanted if is_wanted]
    if options.get("pattern") is not None:
        tests.append(_pattern_test(options["pattern"], str(options.get("patternFlags") or "")))
    if options.get("contains") is not None:
        part = str(options["contains"])
        tests.append(("stringContains", lambda text: part in text, part, str))
    if options.get("enum") is not None:
        allowed = list(options["enum"])
        tests.append(("stringEnum", lambda text: text in allowed, listed(allowed), str))
    return tests + [_form_test(*_FORMS[name]) for name in _FORMS if options.get(name) is True]


def _form_test(type: str, form: re.Pattern[str]) -> TextTest:
    return type, lambda text: form.fullmatch(text) is not None, MISSING, str


def _pattern_test(pattern: str | re.Pattern[str], flags: str) -> TextTest:
    if isinstance(pattern, re.Pattern):
        found = pattern
    else:
        try:
            found = re.compile(pattern, sum(_FLAGS[flag] for flag in flags))
        except (re.error, KeyError, TypeError) as error:
            raise ConfigError(f"params schema: pattern {pattern!r:.60}: {error}") from None
    told = f"/{found.pattern}/{flags}"
    return "stringPattern", lambda text: found.search(text) is not None, told, str
