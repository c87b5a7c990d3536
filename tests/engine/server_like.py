"""A server as far as the reaper is concerned: starts agents and waits for them. Run by test_reaper.py.

python server_like.py SERVER_ID AGENTS reaped|forked|bare
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from engine_kit import Definition, Ledger, perform

from refold.engine.agents import Tools
from refold.engine.reaper import Reaper

AGENT = """
import os, time
if os.fork() == 0:
    os.setsid()  # out of reach of a signal to the agent's group
time.sleep(60)
"""


async def main(server_id: str, agents: int, mode: str) -> None:
    tools = Tools(reaper=Ledger(server_id) if mode == "bare" else Reaper.start(server_id))
    if mode == "forked" and os.fork() == 0:
        time.sleep(60)  # inherits all that the server has open
        os._exit(0)
    agent = Definition("subprocess", {"program": sys.executable, "args": ["-I", "-S", "-c", AGENT]})
    await asyncio.gather(*(perform(agent, {"n": n}, tools) for n in range(agents)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
