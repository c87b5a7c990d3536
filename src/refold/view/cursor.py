"""Positions in a Session's view, and the opaque tokens that name them to clients.

A *position* is `(seq, k)`: frame `k` of log row `seq`. A *cursor* is a position sealed into text, bound to its Session,
to the history it was minted in (the first bytes of the chain at `seq`) and to this store's key:

    version 1 | session 16 | seq 8 | k 1 | fragment 4 | chain 8 | MAC 16      = 54 bytes = 72 characters, no padding

54 is a multiple of 3 on purpose: base64 without padding bits has one spelling per value.

Laws. `decode(mint(p)) == p`. Every other text, Session or key is refused with one error that does not say why. A cursor
proves that it was minted here; only `holds` says that the history it was minted in is the one at hand (a restored
backup has other rows after the same seq). The same position has the same text on every way to a client, since pages,
pushes and snapshots share `mint`.

Not here: which frames lie after a position (`page`), and what a refused cursor becomes on the wire (`protocol`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import Final, Protocol

from refold.errors import InvalidId, MissingAnchor
from refold.records import LogRow, parse_uuid7

VERSION: Final = 1
CHAIN_BYTES: Final = 8
MAC_BYTES: Final = 16
TOKEN_CHARS: Final = 72

_BODY: Final = struct.Struct(">B16sQBI8s")


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """Frame `k` of the log row `seq`. Positions of one Session are totally ordered and never reassigned."""

    seq: int
    k: int


ANCHOR: Final = 0xFFFFFFFF
"""The fragment of a compaction anchor. It names a boundary, not an event: retention may take the boundary away."""

GENESIS: Final = Position(0, 0)
"""Before the first frame. Never minted: a client that holds nothing names no cursor."""


class Mint(Protocol):
    """Turns a position and the first `CHAIN_BYTES` of its row's hash into a cursor of one Session."""

    def __call__(self, position: Position, chain8: bytes, fragment: int = 0) -> str:
        """Returns the cursor of the `fragment`-th ephemeral event after `position`; 0 means `position` itself."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """What an authentic cursor says. `fragment` counts ephemeral events after `position`; it does not move it."""

    position: Position
    fragment: int
    chain8: bytes


def minter(key: bytes, session_id: str) -> Mint:
    """Returns the `mint` of one Session, with the key schedule paid once.

    Raises:
        InvalidId: `session_id` is not a UUIDv7.
    """
    session = bytes.fromhex(parse_uuid7(session_id, "session id").replace("-", ""))
    assert key, "an empty key would make the MAC a plain hash that anybody can compute"
    keyed = hashlib.blake2b(digest_size=MAC_BYTES, key=key, person=b"refold-cursor")

    def seal(position: Position, chain8: bytes, fragment: int = 0) -> str:
        assert position.seq > 0 and len(chain8) == CHAIN_BYTES, (position, chain8)
        body = _BODY.pack(VERSION, session, position.seq, position.k, fragment, chain8)
        mac = keyed.copy()
        mac.update(body)
        return base64.urlsafe_b64encode(body + mac.digest()).decode()

    return seal


def mint(key: bytes, session_id: str, position: Position, chain8: bytes, fragment: int = 0) -> str:
    """Returns the cursor of `position` (of the `fragment`-th ephemeral event after it).

    Args:
        key: the store's MAC key. It travels with the store, so a copied store keeps its cursors.
        session_id: a UUIDv7.
        position: after `GENESIS`.
        chain8: the first `CHAIN_BYTES` of the hash of the row at `position.seq`.
        fragment: 0 for a durable event.

    Raises:
        InvalidId: `session_id` is not a UUIDv7.
    """
    return minter(key, session_id)(position, chain8, fragment)


def decode(key: bytes, session_id: str, token: str) -> Claim:
    """Returns what `token` claims, if this store minted exactly this text for this Session.

    The claim is sealed again and the two texts are compared, so version, Session, MAC and spelling have one judge.

    Raises:
        MissingAnchor: anything else, whatever is wrong with it.
    """
    claim = _parse(token)
    if claim is None or not _is_own(key, session_id, token, claim):
        raise MissingAnchor(session_id)
    return claim


def holds(claim: Claim, row: LogRow | None) -> bool:
    """Tells whether `claim` names a frame of the history that has `row` (None if it has none) at `claim.position.seq`.

    False for a position of the future, and for one of a history that went another way after a restore.
    """
    return (
        row is not None
        and row.seq == claim.position.seq
        and row.hash[:CHAIN_BYTES] == claim.chain8
        and claim.position.k < row.frames
    )


def _parse(token: object) -> Claim | None:
    """Reads the members of a token without believing any of them."""
    if not isinstance(token, str) or len(token) != TOKEN_CHARS or not token.isascii():
        return None
    try:
        data = base64.b64decode(token, altchars=b"-_", validate=True)
        _version, _session, seq, k, fragment, chain8 = _BODY.unpack(data[:-MAC_BYTES])
    except (ValueError, struct.error):
        return None
    return Claim(Position(seq, k), fragment, chain8) if seq else None


def _is_own(key: bytes, session_id: str, token: str, claim: Claim) -> bool:
    try:
        own = mint(key, session_id, claim.position, claim.chain8, claim.fragment)
    except InvalidId:  # what is not the id of a Session has no cursors
        return False
    return hmac.compare_digest(own, token)
