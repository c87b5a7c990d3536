"""WebSocket `/v1/msp`: the frames of the protocol, one text message each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.websockets import WebSocket, WebSocketDisconnect

from refold.server.guard import BEARER_PROTOCOL
from refold.server.rpc import Peer, Rpc


def endpoint(rpc: Rpc) -> Callable[[WebSocket], Awaitable[None]]:
    """The endpoint that speaks for `rpc`."""

    async def serve(socket: WebSocket) -> None:
        offered = socket.scope.get("subprotocols", [])
        await socket.accept(next((name for name in offered if name.startswith(BEARER_PROTOCOL)), None))

        async def send(frame: bytes) -> None:
            await socket.send_text(frame.rstrip(b"\n").decode())

        async with Peer(rpc, send) as peer:
            try:
                while True:
                    message = await socket.receive()
                    if message["type"] == "websocket.disconnect":
                        return
                    await peer.receive_frame(message.get("text") or message.get("bytes") or b"")
            except (WebSocketDisconnect, RuntimeError):
                return  # the peer went away in the middle of our answer

    return serve
