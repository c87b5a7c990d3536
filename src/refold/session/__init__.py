"""The Session log as readers meet it: frames by position, wake-ups, and one pulling subscription per reader."""

from refold.session import boundaries
from refold.session.hub import Hub
from refold.session.live import Live
from refold.session.log import Frames, SessionLog, find_session
from refold.session.subscription import Subscription
from refold.session.suffixes import Batch, Shown, Suffixes

__all__ = [
    "Batch",
    "Frames",
    "Hub",
    "Live",
    "SessionLog",
    "Shown",
    "Subscription",
    "Suffixes",
    "boundaries",
    "find_session",
]
