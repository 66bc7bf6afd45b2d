"""The hash chain over all pages one store ever sent to one peer.

Two stores that agree on a number of messages and on the chain there agree on all of them. A store
that was restored from a backup cannot: it lacks messages, or has others under their numbers.
"""

from __future__ import annotations

from hashlib import blake2b

CHAIN_BYTES = 16


def initial_chain(store: bytes, epoch: int, peer: str) -> bytes:
    """The chain before the first message of a store to a peer."""
    start = b"%s/%d/%s" % (store, epoch, peer.encode())
    return blake2b(start, digest_size=CHAIN_BYTES, person=b"postroad.chain").digest()


def extend_chain(chain: bytes, batch: bytes) -> bytes:
    """The chain after one more page."""
    digest = blake2b(chain, digest_size=CHAIN_BYTES, person=b"postroad.chain")
    digest.update(batch)
    return digest.digest()
