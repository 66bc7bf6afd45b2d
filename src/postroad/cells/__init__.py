"""Cells: named message handlers, and messages routed to them across domains."""

from postroad.cells.addresses import LOCAL, CellAddress, CellPath, Role
from postroad.cells.cell import Cell, CellHandler, FunctionCell
from postroad.cells.config import CellsConfig, DomainStatistics
from postroad.cells.core_discovery import (
    CoreDiscovery,
    CoreLocation,
    MembershipCoreDiscovery,
    StaticCoreDiscovery,
    ZooKeeperCoreDiscovery,
)
from postroad.cells.domain import CellDomain
from postroad.cells.errors import (
    CellBusyError,
    CellNotFoundError,
    CommandRejectedError,
    DuplicateRouteError,
    HopLimitExceededError,
    MessageExpiredError,
    NoRouteError,
    RouteNotFoundError,
    RouteRejectedError,
    RoutingError,
)
from postroad.cells.messages import CellMessage
from postroad.cells.routing.advertiser import RouteAdvertiserConfig
from postroad.cells.routing.route import Route, RouteType
from postroad.cells.routing.route_learner import RouteLearnerConfig
from postroad.cells.routing.route_table import RouteTable
from postroad.cells.sender import Destination
from postroad.cells.shell.commands import command

__all__ = [
    "LOCAL",
    "Cell",
    "CellAddress",
    "CellBusyError",
    "CellDomain",
    "CellHandler",
    "CellMessage",
    "CellNotFoundError",
    "CellPath",
    "CellsConfig",
    "CommandRejectedError",
    "CoreDiscovery",
    "CoreLocation",
    "Destination",
    "DomainStatistics",
    "DuplicateRouteError",
    "FunctionCell",
    "HopLimitExceededError",
    "MembershipCoreDiscovery",
    "MessageExpiredError",
    "NoRouteError",
    "Role",
    "Route",
    "RouteAdvertiserConfig",
    "RouteLearnerConfig",
    "RouteNotFoundError",
    "RouteRejectedError",
    "RouteTable",
    "RouteType",
    "RoutingError",
    "StaticCoreDiscovery",
    "ZooKeeperCoreDiscovery",
    "command",
]
