"""The console: one page for operators over the server's own routes, as files that hold no data.

Everything it shows or does, the reader's browser requests from the routes with the reader's own credentials. So it
gives access to nothing that a caller could not request without it.
"""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route

PAGE = Path(__file__).parent / "page"

SCRIPTS = (
    "api",
    "confirm",
    "dom",
    "format",
    "inbox",
    "live",
    "main",
    "schedules",
    "session",
    "sessions",
    "sign-in",
    "transcript",
    "usage",
)
FILES = {
    "console.css": "text/css",
    "icon.svg": "image/svg+xml",
    **{f"{name}.js": "text/javascript" for name in SCRIPTS},
}

# Everything comes from this server, nothing is inserted into the page as HTML or script, and no other page may frame
# it. Output of models and users is text, and stays text.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-cache",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def routes() -> list[Route]:
    """The routes of the page and its files, open to everybody; access is checked by the routes that the page calls."""
    files = [Route(f"/console/{name}", _file, methods=["GET"]) for name in FILES]
    return [Route("/console", _page, methods=["GET"]), *files]


async def _page(request: Request) -> Response:
    raw: bytes = request.scope.get("raw_path") or b""
    if raw.endswith(b"/"):
        # Files and routes are named relative to the page, so that it works wherever the server is mounted.
        return RedirectResponse("../console", headers=HEADERS)
    return FileResponse(PAGE / "index.html", media_type="text/html", headers=HEADERS)


async def _file(request: Request) -> Response:
    name = request.url.path.rpartition("/")[2]
    return FileResponse(PAGE / name, media_type=FILES[name], headers=HEADERS)
