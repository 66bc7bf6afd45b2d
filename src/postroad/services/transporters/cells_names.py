"""What nodes, topics and queues of services are called among cells; nobody else makes such names.

Cells refuse characters that ids of nodes may have. Whatever is no letter, digit, `_`, `.`, `-` or
`~` is written as the hexadecimal bytes of its UTF-8 form, `%40` for `@`, and read back from that.
"""

from __future__ import annotations

from hashlib import sha256
from urllib.parse import quote, unquote

from postroad.cells import LOCAL
from postroad.cells.addresses import CELL_NAME_BYTES_MAX, validate_cell_name, validate_domain_name
from postroad.services.topics import PREFIX

# None of these is left as it is in what they separate.
_NODE = "/node/"
_ALL = "/all"
_LISTENER = "/listener/"
_QUEUE = "queue/"
_CUT = "!"
_NAMESPACE = "+"

_DIGEST_CHARACTERS = 32


def escape(text: str) -> str:
    """A text as a part of a name, from which it can be read back."""
    return quote(text, safe="", errors="surrogatepass")


class CellNames:
    """The names of one namespace.

    Args:
        prefix: what its topics begin with, such as `MOL-dev`.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = escape(prefix)
        self._has_namespace = prefix != PREFIX
        self.broadcast = validate_cell_name(self._prefix + _ALL)
        """The topic of packets to all nodes."""

    def node(self, node_id: str) -> str:
        """The cell of a node, and the queue it consumes; ConfigError if the id is too long."""
        return validate_cell_name(self._prefix + _NODE + escape(node_id))

    def node_of(self, cell: str) -> str | None:
        """The id of the node that a cell belongs to; None if it is none of this namespace."""
        begin, separator, escaped = cell.partition(_NODE)
        if begin != self._prefix or not separator:
            return None
        try:
            node_id = unquote(escaped, errors="surrogatepass")
        except UnicodeDecodeError:
            return None
        # Two names must not mean the same node.
        return node_id if node_id and escape(node_id) == escaped else None

    def listener(self, node_id: str, number: int) -> str:
        """The cell that consumes what a node listens to since it did so for the nth time."""
        return _fit(f"{self._prefix}{_LISTENER}{escape(node_id)}/{number}")

    def domain(self, node_id: str) -> str:
        """The domain that a node makes for itself; ConfigError if the id is too long."""
        name = escape(node_id)
        if self._has_namespace:
            name = self._prefix + _NAMESPACE + name
        # That one is reserved.
        return "%6Cocal" if name == LOCAL else validate_domain_name(name)


def queue_of(topic: str) -> str:
    """The queue of a balanced topic."""
    return _fit(_QUEUE + escape(topic))


def _fit(name: str) -> str:
    """A name that nobody has to read back, cut if it is too long for a cell."""
    if len(name) <= CELL_NAME_BYTES_MAX:
        return validate_cell_name(name)
    digest = sha256(name.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return validate_cell_name(name[: CELL_NAME_BYTES_MAX - len(digest) - 1] + _CUT + digest)
