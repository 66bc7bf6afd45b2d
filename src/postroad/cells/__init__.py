"""Cells: messages to names, over several domains."""

from .address import (
    LOCAL,
    CellAddress,
    validate_cell_name,
    validate_domain_name,
    validate_zone,
)
from .announcing import Announcer, AnnouncerConfig, offer_of
from .cell import Cell, CellHandler, FunctionCell
from .choice import rank, rank_by
from .commands import Command, command, run_command
from .config import CellsConfig
from .decision import HERE, OUTWARDS, Decision, Delivery, Forward, Origin
from .domain import Domain, Role
from .envelope import Envelope, Kind, make_reply
from .envelope_form import decode_envelope, encode_envelope
from .errors import (
    CellBusy,
    CommandRefused,
    DuplicateRoute,
    HopLimit,
    MessageExpired,
    NoRoute,
    NoSuchCell,
    NoSuchRoute,
    RouteRefused,
    RoutingError,
)
from .failure import Failure, decode_failure, make_error_reply
from .learning import Learner, LearnerConfig, RouteChanges
from .locations import (
    CoreLocation,
    Locations,
    MembershipLocations,
    StaticLocations,
    ZooKeeperLocations,
)
from .message import CellMessage
from .path import CellPath
from .route import Route, RouteType
from .routes import RouteTable, list_routes, require_target, select_routes
from .routing import route_message
from .runtime import CellDomain
from .sending import Carrier, Destination
from .snapshots import (
    Check,
    Have,
    Leaving,
    Offer,
    Snapshot,
    Update,
    decode_update,
    encode_update,
)
from .statistics import CellStatistics

__all__ = [
    "HERE",
    "LOCAL",
    "OUTWARDS",
    "Announcer",
    "AnnouncerConfig",
    "Carrier",
    "Cell",
    "CellAddress",
    "CellBusy",
    "CellDomain",
    "CellHandler",
    "CellMessage",
    "CellPath",
    "CellStatistics",
    "CellsConfig",
    "Check",
    "Command",
    "CommandRefused",
    "CoreLocation",
    "Decision",
    "Delivery",
    "Destination",
    "Domain",
    "DuplicateRoute",
    "Envelope",
    "Failure",
    "Forward",
    "FunctionCell",
    "Have",
    "HopLimit",
    "Kind",
    "Learner",
    "LearnerConfig",
    "Leaving",
    "Locations",
    "MembershipLocations",
    "MessageExpired",
    "NoRoute",
    "NoSuchCell",
    "NoSuchRoute",
    "Offer",
    "Origin",
    "Role",
    "Route",
    "RouteChanges",
    "RouteRefused",
    "RouteTable",
    "RouteType",
    "RoutingError",
    "Snapshot",
    "StaticLocations",
    "Update",
    "ZooKeeperLocations",
    "command",
    "decode_envelope",
    "decode_failure",
    "decode_update",
    "encode_envelope",
    "encode_update",
    "list_routes",
    "make_error_reply",
    "make_reply",
    "offer_of",
    "rank",
    "rank_by",
    "require_target",
    "route_message",
    "run_command",
    "select_routes",
    "validate_cell_name",
    "validate_domain_name",
    "validate_zone",
]
