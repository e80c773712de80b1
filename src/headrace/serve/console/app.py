"""The console: routes, and what the endpoint needs to serve them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import resources
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from headrace.errors import HeadraceError, UsageError
from headrace.serve.access import Access, Role, role
from headrace.serve.console.changes import OperatorChanges
from headrace.serve.console.pages import PageNotFound, Pages
from headrace.serve.console.rendering import Page, Templates, Visit
from headrace.serve.console.request_checks import RequestRejected, cross_site, read_form
from headrace.serve.console.sessions import Sessions
from headrace.serve.console.state_watch import StateWatch
from headrace.serve.monitor import Monitor
from headrace.serve.redaction import Redaction
from headrace.serve.supervisor import Supervisor

_PAGE_SECONDS = 10.0  # that a page may take
_THREADS = 4  # that read tables and state at the same time
_STATIC = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}
_STATIC_PATHS = frozenset(f"/static/{name}" for name in _STATIC)

Handler = Callable[[Visit], Page | Response]


class Console:
    """The pages about the pipelines of a monitor."""

    def __init__(self, monitor: Monitor, access: Access, redaction: Redaction) -> None:
        self.access, self._redaction = access, redaction
        self._sessions = Sessions(access)
        self._templates = Templates(redaction)
        self._pages = Pages(monitor, is_live=not isinstance(monitor, StateWatch))
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="console")
        self._static = {name: _static_file(name) for name in _STATIC}

    @contextmanager
    def control(self, supervisor: Supervisor) -> Iterator[None]:
        """Let operators change the pipelines of a supervisor during the block."""
        self._pages.changes = OperatorChanges(supervisor, self._redaction)
        try:
            yield
        finally:
            self._pages.changes = None

    # ---- for the endpoint ----

    @property
    def open_paths(self) -> frozenset[str]:
        """Paths that need no role."""
        return frozenset({"/login", *_STATIC_PATHS})

    def identify(self, request: Request) -> Role | None:
        """The role of the session in a request."""
        return self._sessions.role(request)

    @property
    def challenges(self) -> tuple[Callable[[Request], Response | None], ...]:
        """Checks of all requests."""
        return (cross_site,)

    def unauthorized(self, request: Request) -> Response | None:
        """The login page for browsers; None for other clients."""
        if "text/html" not in request.headers.get("accept", ""):
            return None
        return self._login_page(request, 401)

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes of the console."""
        pages = self._pages
        by_path: dict[str, Handler] = {
            "/": pages.overview,
            "/help": pages.help,
            "/editor": pages.editor,
            "/pipelines/{pipeline}": pages.pipeline,
            "/pipelines/{pipeline}/spec": pages.spec,
            "/pipelines/{pipeline}/offsets": pages.offsets,
            "/pipelines/{pipeline}/tables/{table}": pages.table,
            "/pipelines/{pipeline}/dead-letters": pages.dead_letters,
            "/pipelines/{pipeline}/audit": pages.audit,
        }
        for_operators: dict[str, Handler] = {
            "/pipelines/{pipeline}/dead-letters/value": pages.dead_letter_value,
            "/pipelines/{pipeline}/dead-letters/dry-run": pages.dry_run,
            "/pipelines/{pipeline}/changes/{change}": pages.change,
        }
        with_forms = {
            "/editor": pages.editor,
            "/pipelines/{pipeline}/dead-letters/dry-run": pages.dry_run,
            "/pipelines/{pipeline}/changes/{change}": pages.confirmed_change,
        }
        routes: list[BaseRoute] = [
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/static/{name}", self._static_response, methods=["GET"]),
        ]
        for path in (*by_path, *for_operators):
            needed = Role.VIEWER if path in by_path else Role.OPERATOR
            handlers = {"GET": (by_path | for_operators)[path]}
            handlers |= {"POST": with_forms[path]} if path in with_forms else {}
            routes.append(Route(path, self._serve(handlers, needed), methods=list(handlers)))
        return routes

    # ---- requests ----

    def _serve(self, handlers: Mapping[str, Handler], needed: Role) -> Callable[[Request], Any]:
        async def serve(request: Request) -> Response:
            visit = self._visit(request)
            if (visit.role or 0) < needed:
                return await self._rendered(visit, self._pages.forbidden(self.access.has_operator))
            try:
                if request.method == "POST":
                    visit = self._visit(request, await read_form(request))
                handler = handlers["GET" if request.method == "HEAD" else request.method]
                answer = await self._in_time(lambda: handler(visit))
            except RequestRejected as rejection:
                answer = self._pages.failure(rejection.status, rejection.message)
            return answer if isinstance(answer, Response) else await self._rendered(visit, answer)

        return serve

    async def _in_time(self, work: Callable[[], Page | Response]) -> Page | Response:
        """The result of reading state and tables in a thread; a page with the error if it fails or takes too long."""
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(loop.run_in_executor(self._pool, work), _PAGE_SECONDS)
        except TimeoutError:
            message = f"The storage did not respond within {_PAGE_SECONDS:.0f} s."
            return self._pages.failure(503, message, "Reload the page, or check the storage of the pipeline.")
        except PageNotFound as missing:
            return self._pages.failure(404, str(missing), "Start at the overview.")
        except HeadraceError as error:
            status = 400 if isinstance(error, UsageError) else 502
            return self._pages.failure(status, f"{error.name}: {error.message}", error.hint)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            return self._pages.failure(500, message, "This is a bug in Headrace; report it.")

    async def _rendered(self, visit: Visit, page: Page) -> HTMLResponse:
        html = await asyncio.to_thread(
            self._templates.render, page, visit, needs_login=self.access.has_tokens, has_changes=self._pages.has_changes
        )
        return HTMLResponse(html, page.status)

    def _visit(self, request: Request, form: Mapping[str, str] | None = None) -> Visit:
        query = request.url.query
        return Visit(
            role(request),
            request.client.host if request.client else "",
            request.url.path + (f"?{query}" if query else ""),
            request.path_params,
            dict(request.query_params),
            form or {},
            has_session=self._sessions.role(request) is not None,
            part=request.headers.get("x-headrace-part", ""),
        )

    # ---- login ----

    async def _login(self, request: Request) -> Response:
        if request.method != "POST":
            return self._login_page(request, 200)
        try:
            form = await read_form(request)
        except RequestRejected as rejection:
            return self._login_page(request, rejection.status, rejection.message)
        address = request.client.host if request.client else ""
        if (wait := self.access.limit.wait(address)) > 0:
            message = f"Too many wrong tokens from your address. Try again in {wait:.0f} s."
            return self._login_page(request, 429, message, form.get("next", ""))
        token = form.get("token", "").strip()
        if self.access.role_of_token(token) is None:
            self.access.limit.add(address)
            return self._login_page(request, 401, "This token is not valid.", form.get("next", ""))
        response = RedirectResponse(_own_path(form.get("next", "")), 303)
        self._sessions.start(request, response, token)
        return response

    def _login_page(self, request: Request, status: int, message: str = "", target: str = "") -> HTMLResponse:
        path = request.url.path
        if not target and request.method == "GET" and path != "/login":
            target = path + (f"?{request.url.query}" if request.url.query else "")
        page = Page("login.html", "Sign in", {"message": message, "target": _own_path(target)}, status)
        visit = Visit(None, "", path)
        html = self._templates.render(page, visit, needs_login=self.access.has_tokens, has_changes=False)
        return HTMLResponse(html, status, {"WWW-Authenticate": 'Bearer realm="headrace"'} if status == 401 else None)

    async def _logout(self, request: Request) -> Response:
        response = RedirectResponse("/login" if self.access.has_tokens else "/", 303)
        self._sessions.end(request, response)
        return response

    async def _static_response(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            return Response("Not found", 404, media_type="text/plain")
        return Response(self._static[name], media_type=_STATIC[name], headers={"cache-control": "no-cache"})


def _static_file(name: str) -> bytes:
    return resources.files("headrace.serve.console").joinpath("static", name).read_bytes()


def _own_path(target: str) -> str:
    """A path of the console itself; `/` for anything else, such as `//evil.example`."""
    if not target.startswith("/") or target.startswith(("//", "/\\")) or not target.isprintable():
        return "/"
    return quote(target, safe="/?=&%:.-_~")
