"""WebSocket `/v1/msp`: the frames of the protocol, one text message each."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from starlette.websockets import WebSocket, WebSocketDisconnect

from refold.server.guard import BEARER_PROTOCOL
from refold.server.rpc import Peer, PeerGone, Rpc


def endpoint(rpc: Rpc) -> Callable[[WebSocket], Awaitable[None]]:
    """The endpoint that speaks for `rpc`."""

    async def serve(socket: WebSocket) -> None:
        offered = socket.scope.get("subprotocols", [])
        await socket.accept(next((name for name in offered if name.startswith(BEARER_PROTOCOL)), None))

        async def send(frame: bytes) -> None:
            try:
                await socket.send_text(frame.rstrip(b"\n").decode())
            except (WebSocketDisconnect, RuntimeError) as error:  # RuntimeError: it was closed before
                raise PeerGone from error

        async with Peer(rpc, send) as peer:
            with contextlib.suppress(PeerGone):  # in the middle of our answer
                while (message := await socket.receive())["type"] != "websocket.disconnect":
                    await peer.receive_frame(message.get("text") or message.get("bytes") or b"")

    return serve
