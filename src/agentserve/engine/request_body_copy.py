"""A bounded copy of an HTTP body, kept while the engine reads it.

Owns the limit, and that the engine gets every message unchanged. It never looks into a body, and
holds it no longer than its request: whoever wants the content takes it within the request's task.
"""

from __future__ import annotations

from typing import Any

from agentserve.engine.backend import Receive

BODY_LIMIT_BYTES = 8 * 1024 * 1024


class RequestBody:
    """The body of one request, as far as the engine has read it.

    Args:
        receive: Where the messages come from.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._chunks: list[bytes] = []
        self._bytes = 0
        self._complete = False
        self._dropped = False

    async def receive(self) -> Any:
        """Hand on the next ASGI message, unchanged; a disconnect of the client too."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._keep(message.get("body", b""))
            self._complete = not message.get("more_body", False)
        return message

    def content(self) -> bytes | None:
        """The whole body; None when it is larger than the limit, or not read to its end."""
        if self._dropped or not self._complete:
            return None
        if len(self._chunks) > 1:
            self._chunks = [b"".join(self._chunks)]
        return self._chunks[0] if self._chunks else b""

    def release(self) -> None:
        """Forget the content: the request is done."""
        self._dropped = True
        self._chunks = []

    def _keep(self, chunk: bytes) -> None:
        self._bytes += len(chunk)
        if self._bytes > BODY_LIMIT_BYTES:
            self.release()
        elif chunk and not self._dropped:
            # By reference: a copy is made only for those who ask for the content.
            self._chunks.append(chunk)
