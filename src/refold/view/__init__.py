"""The view of a Session: how log rows become frames, frames become state, and state becomes a snapshot. Pure.

    LogRecord ──seal──> LogRow ──record.render──> Frame ──fold.apply──> ViewState ──snapshot──> what a resume serves
    session_log          │                          │
    turn_log             ├──── page.frames_after ───┘ │          cursor: the text that names a position
    step_log             └───────── catch_up ─────────┘          ladder: which form of history is served

Not here: reading and writing rows (`store`), who is told when (`session`), the JSON-RPC envelope (`protocol`).
"""

from refold.view.catch_up import catch_up
from refold.view.cursor import ANCHOR, CHAIN_BYTES, GENESIS, Claim, Mint, Position, decode, holds, mint, minter
from refold.view.digest import elide_item
from refold.view.fold import Outcome, ViewState, apply, apply_all
from refold.view.ladder import Anchor, Preference, Rung, attempts, choose, history
from refold.view.page import frames_after, head, last_cursor, origins, start_of_page
from refold.view.parts import rfc3339
from refold.view.payload import JSON_TEXT, PLAIN_TEXT, Payload, clip, named_texts, stow, texts_of_item
from refold.view.record import Frame, closed_item, delta, render
from refold.view.request_log import request_opened, request_settled
from refold.view.session_log import compacted, model_changed, name_changed, session_created, session_resumed
from refold.view.snapshot import (
    SCHEMA_VERSION,
    elide,
    fold_digest,
    seed,
    seed_some,
    snapshot_state,
    view_snapshot,
    weigh,
)
from refold.view.step_log import (
    ITEM_STATUS,
    child,
    step_completed,
    step_dispatched,
    step_reattempted,
    step_retried,
)
from refold.view.trace import trace
from refold.view.turn_log import turn_completed, turn_ended, turn_opened, turn_refused, turn_unqueued, turn_woken

__all__ = [
    "ANCHOR",
    "CHAIN_BYTES",
    "GENESIS",
    "ITEM_STATUS",
    "JSON_TEXT",
    "PLAIN_TEXT",
    "SCHEMA_VERSION",
    "Anchor",
    "Claim",
    "Frame",
    "Mint",
    "Outcome",
    "Payload",
    "Position",
    "Preference",
    "Rung",
    "ViewState",
    "apply",
    "apply_all",
    "attempts",
    "catch_up",
    "child",
    "choose",
    "clip",
    "closed_item",
    "compacted",
    "decode",
    "delta",
    "elide",
    "elide_item",
    "fold_digest",
    "frames_after",
    "head",
    "history",
    "holds",
    "last_cursor",
    "mint",
    "minter",
    "model_changed",
    "name_changed",
    "named_texts",
    "origins",
    "render",
    "request_opened",
    "request_settled",
    "rfc3339",
    "seed",
    "seed_some",
    "session_created",
    "session_resumed",
    "snapshot_state",
    "start_of_page",
    "step_completed",
    "step_dispatched",
    "step_reattempted",
    "step_retried",
    "stow",
    "texts_of_item",
    "trace",
    "turn_completed",
    "turn_ended",
    "turn_opened",
    "turn_refused",
    "turn_unqueued",
    "turn_woken",
    "view_snapshot",
    "weigh",
]
