"""Where records, rows and logs are kept. `base` is the contract, `memory` and `sqlite` keep it, one suite proves it.

Only this package knows back ends; the composition root picks one.
"""

from refold.store.base import (
    AttemptEnd,
    AttemptOpen,
    Question,
    Reader,
    StepCommit,
    Store,
    Tx,
    append_log,
    expanded,
    put_json,
    verify_replay,
)
from refold.store.lock import StoreLock
from refold.store.memory import MemoryStore
from refold.store.sqlite import SqliteStore

__all__ = [
    "AttemptEnd",
    "AttemptOpen",
    "MemoryStore",
    "Question",
    "Reader",
    "SqliteStore",
    "StepCommit",
    "Store",
    "StoreLock",
    "Tx",
    "append_log",
    "expanded",
    "put_json",
    "verify_replay",
]
