"""The page and its data over HTTP, for this machine alone.

A page of another site must learn nothing, even if its name is made to lead here: only requests for this machine by name are
answered, the page may load only what is served here, and what starts work needs the page's own origin. No part of a request
ever becomes a path: what can be asked for is in memory.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

import anyio
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from leco.cli.watch.live import Live
    from leco.cli.watch.replays import Replays

HOSTS = ("127.0.0.1", "localhost")
MOST_PAGES = 50
PING_SECONDS = 15
SEND_SECONDS = 60  # a page that takes nothing for so long is gone
GOODBYE_SECONDS = 3
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
SCRIPT, STYLE = "text/javascript", "text/css"
FILES = {
    "/": ("index.html", "text/html"),
    "/watch.css": ("watch.css", STYLE),
    "/watch.js": ("watch.js", SCRIPT),
    "/curves.js": ("curves.js", SCRIPT),
    "/replay.js": ("replay.js", SCRIPT),
    "/words.js": ("words.js", SCRIPT),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/uPlot.iife.min.js": ("uplot/uPlot.iife.min.js", SCRIPT),
    "/uPlot.min.css": ("uplot/uPlot.min.css", STYLE),
}


def make_app(live: Live, replays: Replays) -> Starlette:
    """The application."""

    async def events(_request: Request) -> Response:
        if live.pages >= MOST_PAGES:
            return PlainTextResponse(f"{MOST_PAGES} pages are open already; close some\n", 503)

        live.pages += 1  # now, and not when it begins to be answered: many may come before
        stopping = anyio.Event()

        async def told() -> AsyncIterator[dict[str, str]]:
            async for name, data in live.changes(stopping.is_set):
                yield {"event": name, "data": data}

        return _Page(
            live,
            told(),
            ping=PING_SECONDS,
            send_timeout=SEND_SECONDS,
            shutdown_event=stopping,
            shutdown_grace_period=GOODBYE_SECONDS,
        )

    async def picture(request: Request) -> Response:
        found = replays.picture(request.path_params["episode"], request.path_params["picture"])
        if found is None:
            return PlainTextResponse("there is no such picture any more\n", 404)
        return Response(found, media_type="image/png", headers={"Cache-Control": "private, max-age=3600, immutable"})

    async def another(request: Request) -> Response:
        if request.headers.get("origin") != f"http://{request.headers['host']}":
            return PlainTextResponse("only the page itself may ask for an episode\n", 403)
        replays.another()
        return Response(status_code=202)

    routes = [Route(path, _file(name, kind)) for path, (name, kind) in FILES.items()]
    routes += [
        Route("/events", events),
        Route("/episodes/{episode:str}/{picture:int}.png", picture),
        Route("/episodes", another, methods=["POST"]),
    ]
    guards = [Middleware(_Headers), Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False)]
    return Starlette(routes=routes, middleware=guards)


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    """Answers with a file of the page, which is read now."""
    data = files("leco.cli.watch").joinpath("page", name).read_bytes()

    async def answer(_request: Request) -> Response:
        return Response(data, media_type=kind)

    return answer


class _Page(EventSourceResponse):
    """The events of one page, which is open until they end, however they do."""

    def __init__(self, live: Live, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._live.pages -= 1


class _Headers:
    """Adds headers to every answer that has not set them itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with)
