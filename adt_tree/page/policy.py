"""The page's security policy: the browser loads nothing but what this server sends."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:"
)


class OwnPolicy:
    """An ASGI middleware that adds the policy to every answer."""

    def __init__(self, app: Callable[..., Awaitable[None]]):
        self.app = app

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Handle a request."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                policy = (b"content-security-policy", POLICY.encode())
                message["headers"] = [*message.get("headers", ()), policy]
            await send(message)

        await self.app(scope, receive, sent)
