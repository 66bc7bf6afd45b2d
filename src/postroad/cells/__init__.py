"""Cells: messages to names, over several domains."""

from .address import (
    LOCAL,
    CellAddress,
    validate_cell_name,
    validate_domain_name,
    validate_zone,
)
from .announcing import RouteAdvertiser, RouteAdvertiserConfig, build_advertisement
from .cell import Cell, CellHandler, FunctionCell
from .choice import rendezvous_rank, rendezvous_rank_by
from .commands import Command, command, run_command
from .config import CellsConfig
from .decision import (
    LOCAL_ORIGIN,
    REMOTE_ONLY_ORIGIN,
    Forward,
    LocalDelivery,
    MessageOrigin,
    RoutingDecision,
)
from .domain import DomainInfo, Role
from .envelope import Envelope, MessageKind, make_reply
from .envelope_form import decode_envelope, encode_envelope
from .errors import (
    CellBusyError,
    CellNotFoundError,
    CommandRefused,
    DuplicateRouteError,
    HopLimitExceededError,
    MessageExpiredError,
    NoRouteError,
    RouteNotFoundError,
    RouteRejectedError,
    RoutingError,
)
from .failure import DeliveryFailure, decode_failure, make_error_reply
from .learning import RouteChanges, RouteLearner, RouteLearnerConfig
from .locations import (
    CoreDiscovery,
    CoreLocation,
    MembershipCoreDiscovery,
    StaticCoreDiscovery,
    ZooKeeperCoreDiscovery,
)
from .message import CellMessage
from .path import CellPath
from .route import Route, RouteType
from .routes import RouteTable, check_route_target, filter_routes, format_routes
from .routing import route_message
from .runtime import CellDomain
from .sending import Destination, DurableSender
from .snapshots import (
    AdvertisementAck,
    AdvertisementQuery,
    AdvertisementUpdate,
    RouteAdvertisement,
    RoutingUpdate,
    ShutdownNotice,
    decode_routing_update,
    encode_routing_update,
)
from .statistics import DomainStatistics

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
    "CommandRefused",
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
