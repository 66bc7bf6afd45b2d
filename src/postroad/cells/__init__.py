"""Cells: messages to names, over several domains. This half is pure: it decides, and does nothing.

Addresses and paths, envelopes, the routing table and the routing decision, and what domains tell
each other of the queues and topics they offer.
"""

from .address import (
    LOCAL,
    CellAddress,
    validate_cell_name,
    validate_domain_name,
    validate_zone,
)
from .announcing import Announcer, AnnouncerConfig, offer_of
from .choice import rank, rank_by
from .decision import HERE, OUTWARDS, Decision, Delivery, Forward, Origin
from .domain import Domain, Role
from .envelope import Envelope, Kind, decode_envelope, encode_envelope, make_reply
from .errors import (
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
from .path import CellPath
from .route import Route, RouteType
from .routes import RouteTable, list_routes, require_target, select_routes
from .routing import route_message
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

__all__ = [
    "HERE",
    "LOCAL",
    "OUTWARDS",
    "Announcer",
    "AnnouncerConfig",
    "CellAddress",
    "CellPath",
    "Check",
    "Decision",
    "Delivery",
    "Domain",
    "DuplicateRoute",
    "Envelope",
    "Failure",
    "Forward",
    "Have",
    "HopLimit",
    "Kind",
    "Learner",
    "LearnerConfig",
    "Leaving",
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
    "Update",
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
    "select_routes",
    "validate_cell_name",
    "validate_domain_name",
    "validate_zone",
]
