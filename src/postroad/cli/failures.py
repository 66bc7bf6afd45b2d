"""What people are told when something fails: one sentence, and what to try next."""

from __future__ import annotations

import click

from postroad.admin import PostroadError

from .main import EXIT_FAILED, EXIT_NOT_FOUND
from .screen import visible

NEXT = {
    "Forbidden": "postroad context ls",
    "MissingExtraError": "",
    "NotFound": "",
    "DeadLetterNotFoundError": "postroad dlq ls",
    "FlowNotFoundError": "postroad flow ls",
    "MemberNotFoundError": "postroad cluster ls",
    "CellNotFoundError": "postroad cells ps",
    "ServiceNotFoundError": "postroad service actions",
    "StoreCorruptedError": "postroad doctor",
    "StoreLockedError": "postroad node show",
    "StoreUnavailableError": "postroad doctor",
    "WrongToken": "postroad context ls",
}
"""The next command, by the error; those not named explain themselves by their code."""

_SPECIAL_CODE = 2_000
"""Below it are errors of all sorts, of which their class tells nothing more."""


def tell_failure(error: Exception) -> int:
    """Tell people about an error that was foreseen, and return the exit code; others go on up."""
    if not isinstance(error, PostroadError):
        raise error
    click.echo(f"postroad: {visible(str(error))}", err=True)
    following = next_of(error)
    if following:
        click.echo(f"Try: {visible(following)}", err=True)
    return code_of(error)


def next_of(error: PostroadError) -> str:
    """The command to try after an error; empty if there is none."""
    notes = notes_of(error)
    if notes:
        return notes[-1]
    name = type(error).__name__
    if name in NEXT:
        return NEXT[name]
    # What was said wrongly is named by the text itself.
    is_plain = "`postroad " in str(error) or isinstance(error, ValueError)
    return "" if is_plain or error.code < _SPECIAL_CODE else f"postroad errors {error.code}"


def notes_of(error: BaseException) -> list[str]:
    """What an error itself tells to try, but for its own explanation."""
    notes: list[str] = getattr(error, "__notes__", [])
    return [it for it in notes if not it.startswith("postroad errors ")]


def code_of(error: PostroadError) -> int:
    """The exit code that an error means."""
    return EXIT_NOT_FOUND if isinstance(error, LookupError) else EXIT_FAILED
