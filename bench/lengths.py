"""What the length of a Session costs in memory: those who serve its log, and who has written it.

The log is that of `attach`: every two events are an item of its own, and the Session compacts itself as it grows. What
a process needs that serves or writes anything at all is paid before, with a short Session, and does not count.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from bench.sample import Figures, main
from bench.served import Server, attach, serving
from bench.sessions import SHORT, SUFFIX, Grown, grow_items
from refold.server import process


async def served(folder: Path, events: int) -> Figures:
    """By how much a server outgrows itself while clients come back at the start, the middle and the end of a log, read
    it to its end and stay."""
    short, long = [await grow_items(folder, each) for each in (SHORT, events)]
    with serving(folder) as server:
        async with AsyncExitStack() as stack:
            await _read_from_everywhere(server, short, SHORT, stack)
            before = _kib("VmRSS", server.pid)
            await _read_from_everywhere(server, long, events, stack)
            return {"mib": (_kib("VmHWM", server.pid) - before) / 1024}


async def _read_from_everywhere(server: Server, grown: Grown, events: int, stack: AsyncExitStack) -> None:
    owed = ((grown.start, events + SUFFIX), (grown.middle, events // 2 + SUFFIX), (grown.cursor, SUFFIX))
    for cursor, at_least in owed:
        socket, answer = await attach(server, grown.session_id, cursor=cursor)
        stack.push_async_callback(socket.close)
        assert answer["history"]["noneReason"] == "cursorSuffix", answer["history"]
        frames, last = 1, f'"viewCursor":"{answer["viewCursor"]}"'
        while last not in await socket.recv(decode=True):
            frames += 1
        assert frames >= at_least, (frames, at_least)  # and the events of its compactions


async def written(folder: Path, events: int) -> Figures:
    """By how much the process grows that writes such a log, and compacts it, at most."""
    await grow_items(folder, SHORT)
    before = _kib("VmRSS")
    await grow_items(folder, events)
    return {"mib": (_kib("VmHWM") - before) / 1024}


def _kib(name: str, pid: int | None = None) -> float:
    """A figure of a process as Linux keeps it: `VmRSS` is the memory that it has, `VmHWM` the most that it ever had."""
    lines = Path(f"/proc/{pid or 'self'}/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


WORKS = {"events": served, "wrote": written}

if __name__ == "__main__":
    main(WORKS, process.run)
