"""The console in a real Chromium: keys, live updates, phone width, dark mode, without scripts.

With HEADRACE_SCREENSHOTS=1, the screenshots of the docs are written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from docs.pages import DOCS
from headrace.pipeline.control import State
from headrace.serve.monitor import Monitor
from headrace.serve.supervisor import Supervisor
from services.browser import open_browser
from services.console import OPERATOR, TOKENS, VIEWER, ServedConsole, busy_pipeline, filled_pipeline, served_console
from services.monitored import progress, stopped
from services.sessions import FailingSession
from services.wait import eventually

WITHIN = 60_000  # milliseconds
expect.set_options(timeout=WITHIN)

OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedConsole]:
    harness, monitor = busy_pipeline(tmp_path_factory.mktemp("busy"))
    with served_console(harness, TOKENS, monitor) as console:
        yield console


@contextmanager
def opened(browser: Browser, console: ServedConsole, token: str = VIEWER, **options: object) -> Iterator[Page]:
    """A page of a signed-in visitor; every error of a script, or of the content policy, fails the test."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(WITHIN)
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    try:
        page.goto(f"{console.client.url.geturl()}/login")
        page.fill("#token", token)
        page.press("#token", "Enter")
        page.wait_for_url("**/")
        yield page
        assert problems == []
    finally:
        context.close()


def paths(console: ServedConsole) -> list[str]:
    own = ("", "/spec", "/offsets", "/dead-letters", "/audit")
    pages = ["/", "/help", "/editor", "/editor?pipeline=shop", *(f"/pipelines/shop{path}" for path in own)]
    return [*pages, console.table_path("order")]


def address(console: ServedConsole, path: str) -> str:
    return f"{console.client.url.geturl()}{path}"


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent.trim()"))


def arrived(page: Page, title: str) -> None:
    """Wait for a page and its script, which handles the keys."""
    expect(page.locator("h1")).to_have_text(title)
    page.wait_for_load_state()


def test_a_visitor_signs_in_and_finds_a_table_with_keys_alone(browser: Browser, served: ServedConsole) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(address(served, "/pipelines/shop"))
    arrived(page, "Sign in")
    expect(page.locator("#token")).to_be_focused()
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("[role=alert]")).to_have_text("This token is not valid.")
    expect(page.locator("#token")).to_be_focused()
    page.keyboard.type(VIEWER)
    page.keyboard.press("Enter")
    arrived(page, "shop")
    (cookie,) = context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.evaluate("document.cookie") == ""
    assert VIEWER not in page.url
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to content"
    assert page.evaluate("getComputedStyle(document.activeElement).left") == "8px"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert focused(page) == "Overview"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("?")
    arrived(page, "Help")
    page.keyboard.press("o")
    arrived(page, "Overview")
    page.keyboard.press("j")
    assert focused(page) == "shop"
    page.keyboard.press("Enter")
    arrived(page, "shop")
    for key, title in (("d", "Dead letters of shop"), ("f", "Offsets of shop"), ("s", "Spec of shop")):
        page.keyboard.press(key)
        arrived(page, title)
    page.goto(address(served, "/pipelines/shop"))
    rows = 0
    while focused(page) != "order":
        page.keyboard.press("j")
        rows += 1
        assert rows < 60
    page.keyboard.press("Enter")
    arrived(page, "order")
    page.keyboard.press("Tab")
    page.locator("text=Sign out").press("Enter")
    arrived(page, "Sign in")
    context.close()


def test_pages_follow_the_pipeline_without_a_reload(browser: Browser, tmp_path: Path) -> None:
    harness = filled_pipeline(tmp_path)
    monitor = Monitor([harness.spec])
    for event in (*harness.events, progress(lag=None)):
        monitor(event)
    with served_console(harness, TOKENS, monitor) as console, opened(browser, console) as page:
        row = page.locator("#pipelines tbody tr").first
        expect(row).to_contain_text("unknown")
        page.wait_for_load_state()
        page.keyboard.press("j")
        monitor(progress(lag=4321))
        expect(row).to_contain_text("4,321")
        assert focused(page) == "shop"
        monitor(stopped())
        expect(row).to_contain_text("failed")
        expect(page.locator(".problem")).to_have_text("Unhealthy: failed: SourceGap: Offsets are gone.")


def test_the_editor_answers_while_typing(browser: Browser, served: ServedConsole) -> None:
    with opened(browser, served) as page:
        page.wait_for_load_state()
        page.keyboard.press("e")
        page.wait_for_url("**/editor")
        page.wait_for_load_state()
        expect(page.locator("#result")).to_contain_text("read 3 = routed 2 + dead 1 + filtered 0")
        page.locator("#records").press("Control+End")
        page.keyboard.type('{"id": 4, "type": "refund", "occurred_at": "2026-01-31T12:00:03Z"}')
        expect(page.locator("#result")).to_contain_text("read 4 = routed 3 + dead 1 + filtered 0")
        expect(page.locator("#result")).to_contain_text("lake/refund")
        page.locator("#spec").press("Control+End")
        page.keyboard.type("\nunknown: 1")
        expect(page.locator("#result .diagnostics")).to_contain_text("unknown key")
        assert page.evaluate("document.activeElement.id") == "spec"


def test_pages_fit_a_phone(browser: Browser, served: ServedConsole) -> None:
    with opened(browser, served, OPERATOR, viewport={"width": 360, "height": 740}) as page:
        for path in paths(served):
            page.goto(address(served, path))
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= 360, (path, width)
        page.goto(address(served, "/"))
        assert page.locator("#pipelines thead").evaluate("each => getComputedStyle(each).position") == "absolute"


# Contrast of text and its background, as WCAG defines it; backgrounds are opaque here.
CONTRASTS = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const linear = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    const [r, g, b] = color.slice(0, 3).map((v) => linear(v / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const back = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = rgb(getComputedStyle(each).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll("main *, header *")].filter((each) =>
    [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()) && each.checkVisibility() &&
    !each.closest("svg"));
  return texts.map((each) => {
    const [a, b] = [light(rgb(getComputedStyle(each).color)), light(back(each))].sort((x, y) => y - x);
    return [(a + .05) / (b + .05), each.tagName + " " + each.textContent.trim().slice(0, 40)];
  }).filter(([ratio]) => ratio < 4.5);
}"""


def test_texts_are_readable_in_light_and_dark_mode(browser: Browser, served: ServedConsole) -> None:
    backgrounds = {}
    for scheme in ("light", "dark"):
        with opened(browser, served, OPERATOR, color_scheme=scheme) as page:
            for path in paths(served):
                page.goto(address(served, path))
                assert page.evaluate(CONTRASTS) == [], (scheme, path)
            backgrounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light, dark = (sum(map(int, re.findall(r"\d+", backgrounds[each])[:3])) for each in ("light", "dark"))
    assert light > 3 * 200 > 3 * 60 > dark


def test_every_page_can_be_read_without_scripts(browser: Browser, served: ServedConsole) -> None:
    with opened(browser, served, java_script_enabled=False) as page:
        for path in paths(served):
            page.goto(address(served, path))
            assert len(page.locator("main").inner_text()) > 100, path
        page.goto(address(served, "/editor"))
        page.fill("#records", '{"id": 1, "type": "order"}')
        page.click(".editor button")
        expect(page.locator("#result")).to_contain_text("read 1 = routed 1")


def test_a_change_asks_first(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = filled_pipeline(tmp_path)
    harness.serve(monkeypatch)
    monitor = Monitor()
    supervisor = Supervisor(FailingSession([]), report=monitor, monitor=monitor)
    with served_console(harness, TOKENS, monitor) as console, console.console.control(supervisor):
        supervisor.start([harness.spec])
        eventually(lambda: supervisor.states()[0].state is State.RUNNING, 60, "the pipeline runs")
        try:
            _pause_and_replay(browser, console, supervisor)
        finally:
            supervisor.process_stop.set()
            assert supervisor.join()


def _pause_and_replay(browser: Browser, console: ServedConsole, supervisor: Supervisor) -> None:
    with opened(browser, console, OPERATOR) as page:
        page.goto(address(console, "/pipelines/shop"))
        page.click("text=Pause…")
        expect(page.locator("main")).to_contain_text("The pipeline pauses after its current batch.")
        page.click("text=Cancel")
        assert supervisor.states()[0].state is State.RUNNING
        page.click("text=Pause…")
        page.click("main button")
        expect(page.locator("#audit")).to_contain_text("operator from 127.0.0.1")
        eventually(lambda: supervisor.states()[0].state is State.PAUSED, 60, "the pipeline pauses")
        page.goto(address(console, "/pipelines/shop/dead-letters"))
        page.click("text=Replay…")
        page.fill("#confirm", "shop")
        page.press("#confirm", "Enter")
        expect(page.locator("#audit")).to_contain_text("0 replayed, 6 still dead, 0 filtered")


SCREENSHOTS = {
    "pipeline": ("/pipelines/shop?batch=24", "light"),
    "dead-letters": ("/pipelines/shop/dead-letters", "dark"),
    "offsets": ("/pipelines/shop/offsets", "light"),
    "editor": ("/editor", "dark"),
}


@pytest.mark.parametrize("name", SCREENSHOTS)
def test_the_screenshots_of_the_docs(name: str, browser: Browser, served: ServedConsole, tmp_path: Path) -> None:
    path, scheme = SCREENSHOTS[name]
    is_written = os.environ.get("HEADRACE_SCREENSHOTS") == "1"
    file = (DOCS / "operate" / "images" if is_written else tmp_path) / f"{name}.png"
    viewport = {"width": 1080, "height": 900 if scheme == "light" else 760}
    with opened(browser, served, OPERATOR, color_scheme=scheme, viewport=viewport) as page:
        page.goto(address(served, path))
        page.evaluate("document.querySelector('#samples')?.scrollIntoView()")
        page.screenshot(path=file)
    assert 10_000 < file.stat().st_size < 150_000
    assert (DOCS / "operate" / "images" / f"{name}.png").exists()
    assert f"images/{name}.png" in (DOCS / "operate" / "console.md").read_text()
