"""What can go wrong with cells, below the tree of `postroad.core.errors`.

ConfigError
└── RouteRejectedError                          the table cannot be changed like that
    ├── DuplicateRouteError                     it has that route already
    ├── RouteNotFoundError (LookupError)        it has no such route
    └── CellNotFoundError (LookupError)         the route's target is no cell of this domain
UsageError
└── CommandRejectedError (PermissionError)            a command of another domain, which it may not give
MessagingError
└── RoutingError                                abstract
    ├── NoRouteError                            nobody takes the message, here or where it got to
    ├── HopLimitExceededError                   it went from domain to domain, or in circles
    ├── MessageExpiredError                     its time was over before it arrived
    └── CellBusyError                           a mailbox or a link on its way is full

What went wrong in the receiver comes back as these of `postroad.core.errors`:

MessagingError
├── RemoteHandlerError                          its handler raised; `remote_code` tells what
└── RemoteDecodeError                           it cannot decode the payload: MalformedPayloadError
"""

from __future__ import annotations

from postroad.core.errors import ConfigError, MessagingError, Outcome, UsageError


class RouteRejectedError(ConfigError):
    """The routing table cannot be changed like that; it is as it was."""

    code = 7100


class DuplicateRouteError(RouteRejectedError):
    """The table has a route of that type, destination and target already."""

    code = 7110


class RouteNotFoundError(RouteRejectedError, LookupError):
    """The table has no route of that type, destination and target."""

    code = 7120


class CellNotFoundError(RouteRejectedError, LookupError):
    """A route of this domain needs a cell of this domain, or another domain, to lead to."""

    code = 7130


class CommandRejectedError(UsageError, PermissionError):
    """Whoever is in another domain may not give this command here; see `remote_commands`."""

    code = 7150


class RoutingError(MessagingError):
    """Abstract: a message did not find its way."""

    code = 7200
    outcome = Outcome.REPLIED


class NoRouteError(RoutingError):
    """Nobody takes the message; transient while cells start and routes spread."""

    code = 7210
    retryable = True


class HopLimitExceededError(RoutingError):
    """The message was sent from domain to domain, or from alias to alias, without an end."""

    code = 7220


class MessageExpiredError(RoutingError):
    """The time the sender gave the message was over before anybody took it."""

    code = 7230
    retryable = True


class CellBusyError(RoutingError):
    """The mailbox of a cell, or the queue of a link, is full; the message was not queued."""

    code = 7240
    retryable = True
