"""Cells: named message handlers, and messages routed to them across domains."""

from postroad.cells.addresses import (
    LOCAL,
    CellAddress,
    CellPath,
    DomainInfo,
    Role,
    validate_cell_name,
    validate_domain_name,
    validate_zone,
)
from postroad.cells.cell import Cell, CellHandler, FunctionCell
from postroad.cells.config import CellsConfig
from postroad.cells.core_discovery import (
    CoreDiscovery,
    CoreLocation,
    MembershipCoreDiscovery,
    StaticCoreDiscovery,
    ZooKeeperCoreDiscovery,
)
from postroad.cells.delivery.envelope import Envelope, MessageKind, make_reply
from postroad.cells.delivery.envelope_codec import decode_envelope, encode_envelope
from postroad.cells.delivery.failure import DeliveryFailure, decode_failure, make_error_reply
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
from postroad.cells.routing.advertisements import (
    AdvertisementAck,
    AdvertisementQuery,
    AdvertisementUpdate,
    RouteAdvertisement,
    RoutingUpdate,
    ShutdownNotice,
    decode_routing_update,
    encode_routing_update,
)
from postroad.cells.routing.advertiser import (
    RouteAdvertiser,
    RouteAdvertiserConfig,
    build_advertisement,
)
from postroad.cells.routing.decision import (
    LOCAL_ORIGIN,
    REMOTE_ONLY_ORIGIN,
    Forward,
    LocalDelivery,
    MessageOrigin,
    RoutingDecision,
)
from postroad.cells.routing.rendezvous import rendezvous_rank, rendezvous_rank_by
from postroad.cells.routing.route import Route, RouteType
from postroad.cells.routing.route_learner import RouteChanges, RouteLearner, RouteLearnerConfig
from postroad.cells.routing.route_table import (
    RouteTable,
    check_route_target,
    filter_routes,
    format_routes,
)
from postroad.cells.routing.router import route_message
from postroad.cells.sender import Destination, DurableSender
from postroad.cells.shell.commands import Command, command, run_command
from postroad.cells.statistics import DomainStatistics

__all__ = [
    "LOCAL",
    "LOCAL_ORIGIN",
    "REMOTE_ONLY_ORIGIN",
    "AdvertisementAck",
    "AdvertisementQuery",
    "AdvertisementUpdate",
    "Cell",
    "CellAddress",
    "CellBusyError",
    "CellDomain",
    "CellHandler",
    "CellMessage",
    "CellNotFoundError",
    "CellPath",
    "CellsConfig",
    "Command",
    "CommandRejectedError",
    "CoreDiscovery",
    "CoreLocation",
    "DeliveryFailure",
    "Destination",
    "DomainInfo",
    "DomainStatistics",
    "DuplicateRouteError",
    "DurableSender",
    "Envelope",
    "Forward",
    "FunctionCell",
    "HopLimitExceededError",
    "LocalDelivery",
    "MembershipCoreDiscovery",
    "MessageExpiredError",
    "MessageKind",
    "MessageOrigin",
    "NoRouteError",
    "Role",
    "Route",
    "RouteAdvertisement",
    "RouteAdvertiser",
    "RouteAdvertiserConfig",
    "RouteChanges",
    "RouteLearner",
    "RouteLearnerConfig",
    "RouteNotFoundError",
    "RouteRejectedError",
    "RouteTable",
    "RouteType",
    "RoutingDecision",
    "RoutingError",
    "RoutingUpdate",
    "ShutdownNotice",
    "StaticCoreDiscovery",
    "ZooKeeperCoreDiscovery",
    "build_advertisement",
    "check_route_target",
    "command",
    "decode_envelope",
    "decode_failure",
    "decode_routing_update",
    "encode_envelope",
    "encode_routing_update",
    "filter_routes",
    "format_routes",
    "make_error_reply",
    "make_reply",
    "rendezvous_rank",
    "rendezvous_rank_by",
    "route_message",
    "run_command",
    "validate_cell_name",
    "validate_domain_name",
    "validate_zone",
]
