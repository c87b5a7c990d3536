"""The Muse Session Protocol without I/O: frames, methods, errors, and the state of one connection.

A transport needs `Connection` and `HostInfo`; the server's method handlers need `Call` and `TABLE`. What a Session is
and how its view is folded is not known here.
"""

from refold.protocol.codes import ERRORS, ErrorRow, error_object, row_for
from refold.protocol.connection import Call, Connection, Event, Notified, Replied, State
from refold.protocol.jsonrpc import FRAME_LIMIT, FrameTooLarge, Splitter
from refold.protocol.messages import BOOKMARKS, GRANTABLE, HostInfo, Limits, initialize_result
from refold.protocol.methods import PROTECTED, SERVABLE, TABLE, Availability, MethodRow

__all__ = [
    "BOOKMARKS",
    "ERRORS",
    "FRAME_LIMIT",
    "GRANTABLE",
    "PROTECTED",
    "SERVABLE",
    "TABLE",
    "Availability",
    "Call",
    "Connection",
    "ErrorRow",
    "Event",
    "FrameTooLarge",
    "HostInfo",
    "Limits",
    "MethodRow",
    "Notified",
    "Replied",
    "Splitter",
    "State",
    "error_object",
    "initialize_result",
    "row_for",
]
