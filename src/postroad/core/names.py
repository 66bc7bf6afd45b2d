"""Node names, validated in one place.

A node's name is its cluster member id, its domain, its peer name in the outbox and the subject
alternative name of its certificate, so it must be valid in all of those.
"""

from __future__ import annotations

from .errors import ConfigError

NODE_NAME_BYTES_MAX = 255

# These separate a name from something else in an address, a pattern or a path.
_FORBIDDEN = frozenset("@:*/\\")
_RESERVED = frozenset({"local"})


def validate_node_name(name: str) -> str:
    """Return the name if it may be a node's, else raise ConfigError saying what is wrong."""
    if not name:
        raise ConfigError("a node name must not be empty")
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > NODE_NAME_BYTES_MAX:
        raise ConfigError(f"node name of {size} bytes is longer than {NODE_NAME_BYTES_MAX}")
    if name in _RESERVED:
        raise ConfigError(f"node name {name!r} is reserved")
    for character in name:
        if character in _FORBIDDEN or character.isspace() or not character.isprintable():
            raise ConfigError(
                f"node name {name!r} contains {character!r}; "
                "use letters, digits, '.', '-' and '_' only"
            )
    return name


def validate_cluster_name(name: str) -> str:
    """Return the name if it may be a cluster's: anything encodable, also empty, up to the limit."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"cluster name {name!r} cannot be encoded as UTF-8") from None
    if size > NODE_NAME_BYTES_MAX:
        raise ConfigError(f"cluster name of {size} bytes is longer than {NODE_NAME_BYTES_MAX}")
    return name
