"""Errors of cells, as subclasses of those of `postroad.core.errors`.

ConfigError
└── RouteRejectedError                          the route table rejected a change
    ├── DuplicateRouteError                     the table has that route already
    ├── RouteNotFoundError (LookupError)        the table has no such route
    └── CellNotFoundError (LookupError)         the target of the route is no cell of this domain
UsageError
└── CommandRejectedError (PermissionError)            another domain may not run this command here
MessagingError
└── RoutingError                                abstract
    ├── NoRouteError                            no domain on its path has a route
    ├── HopLimitExceededError                   too many hops, or aliases in a circle
    ├── MessageExpiredError                     its TTL was over before it was handled
    └── CellBusyError                           a mailbox or the queue of a tunnel is full

Failures of the receiving cell are raised as these errors of `postroad.core.errors`:

MessagingError
├── RemoteHandlerError                          its handler raised; `remote_code` is the error code
└── RemoteDecodeError                           its handler raised MalformedPayloadError
"""

from __future__ import annotations

from postroad.core.errors import ConfigError, MessagingError, Outcome, UsageError


class RouteRejectedError(ConfigError):
    """The route table rejected a change and is unchanged."""

    code = 7100


class DuplicateRouteError(RouteRejectedError):
    """The table has a route of that type, destination and target already."""

    code = 7110


class RouteNotFoundError(RouteRejectedError, LookupError):
    """The table has no route of that type, destination and target."""

    code = 7120


class CellNotFoundError(RouteRejectedError, LookupError):
    """There is no cell or domain of that name that the route could lead to."""

    code = 7130


class CommandRejectedError(UsageError, PermissionError):
    """Another domain may not run this command here; see the setting `remote_commands`."""

    code = 7150


class RoutingError(MessagingError):
    """Abstract: a message could not be routed or delivered."""

    code = 7200
    outcome = Outcome.REPLIED


class NoRouteError(RoutingError):
    """No route to the destination; transient while cells start and routes are advertised."""

    code = 7210
    retryable = True


class HopLimitExceededError(RoutingError):
    """The message took too many hops, or followed too many aliases in one domain."""

    code = 7220


class MessageExpiredError(RoutingError):
    """The TTL of the message was over before a cell handled it."""

    code = 7230
    retryable = True


class CellBusyError(RoutingError):
    """The mailbox of a cell, or the queue of a link, is full; the message was not queued."""

    code = 7240
    retryable = True
