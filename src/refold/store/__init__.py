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
    begin_log,
    verify_log,
    verify_replay,
)
from refold.store.memory import MemoryStore
from refold.store.sqlite import SqliteStore
from refold.store.values import (
    bodies,
    expanded,
    keep_outputs,
    output_text,
    put_json,
    put_launch,
    put_value,
    told,
    value_text,
    with_launch,
)

__all__ = [
    "AttemptEnd",
    "AttemptOpen",
    "MemoryStore",
    "Question",
    "Reader",
    "SqliteStore",
    "StepCommit",
    "Store",
    "Tx",
    "append_log",
    "begin_log",
    "bodies",
    "expanded",
    "keep_outputs",
    "output_text",
    "put_json",
    "put_launch",
    "put_value",
    "told",
    "value_text",
    "verify_log",
    "verify_replay",
    "with_launch",
]
