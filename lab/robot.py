"""Plays the person at the dashboard, in a real browser: what tests and the soak press, drag and read.

Needs playwright and a chromium of the system (playwright's own download is not used).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page, expect
from recguide.lab.robot_server import Server

FIGURE = ".recguide-lab .js-plotly-plot"
LONG = 60_000  # ms; the machine may be busy with other tests
SAVING = 15_000  # ms
ASKED = 2
LOADING = 150.0  # s for a page to load its scripts and every widget's state
HARMLESS = re.compile(r"favicon|font|404 \(Not Found\)|ERR_INTERNET_DISCONNECTED|ERR_NAME_NOT_RESOLVED")


class Dashboard:
    """One dashboard on a page. ``complaints`` are console errors and uncaught exceptions since the page was opened."""

    def __init__(self, page: Page):
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.set_default_timeout(LONG)

    def assert_no_complaints(self) -> None:
        serious = [c for c in self.complaints if not HARMLESS.search(c)]
        assert not serious, serious

    def wait(self) -> None:
        """Until the figure is painted and the engine decodes."""
        self.wait_figure()
        self.until(lambda: self.state.startswith("running") and self.tokens() > 0)

    def wait_figure(self) -> None:
        """Until the figure is painted."""
        self.until(lambda: self.page.locator(f"{FIGURE} .main-svg").first.is_visible(), LOADING)

    @property
    def state(self) -> str:
        """The state line; empty before there is one."""
        line = self.page.locator(".recguide-state")
        return line.first.inner_text() if line.count() else ""

    def wait_state(self, state: str) -> None:
        """Until the session is running, paused or stopped: the line's first word."""
        expect(self.page.locator(".recguide-state b").first).to_have_text(state, timeout=LONG)

    def wait_policy(self, name: str) -> None:
        expect(self.page.locator(".recguide-state").first).to_contain_text(f"policy {name}", timeout=LONG)

    def tokens(self) -> int:
        """Tokens decoded so far, as the state line says."""
        found = re.search(r"(\d+) tokens in", self.state)
        return int(found[1]) if found else 0

    def running(self) -> tuple[int, int]:
        """Requests decoded now, and the engine's own concurrency."""
        found = re.search(r"(\d+) of (\d+) running", self.state)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    def button(self, name: str) -> Locator:
        # by text: an icon is part of a button's accessible name
        return self.page.locator(".recguide-lab button").filter(has_text=re.compile(rf"^\s*{name}\s*$"))

    def press(self, name: str) -> None:
        self.button(name).click()

    def tab(self, name: str) -> None:
        self.page.locator(".recguide-lab").get_by_role("tab", name=name, exact=True).click()

    def slider(self, label: str) -> Locator:
        """A slider by the accessible name that the lab gives it."""
        return self.page.locator(f'.recguide-lab [role=slider][aria-label^="{label}"]').first

    def drag(self, label: str, value: float) -> None:
        """Take a slider by the mouse and let it go where ``value`` lies on its track."""
        handle = self.slider(label)
        handle.scroll_into_view_if_needed()
        low, high = (float(handle.get_attribute(f"aria-value{end}")) for end in ("min", "max"))
        track = handle.locator("xpath=ancestor::*[contains(@class, 'noUi-base')]").bounding_box()
        held = handle.bounding_box()
        y = held["y"] + held["height"] / 2
        mouse = self.page.mouse
        mouse.move(held["x"] + held["width"] / 2, y)
        mouse.down()
        mouse.move(track["x"] + track["width"] * (value - low) / (high - low), y, steps=8)
        mouse.up()

    def choose(self, label: str, option: str) -> None:
        self.page.locator(".recguide-lab").get_by_label(label, exact=True).select_option(option)

    def result(self, pattern: str) -> str:
        """The job's message, once it matches."""
        line = self.page.locator(".recguide-lab [role=status]")
        expect(line).to_contain_text(re.compile(pattern), timeout=LONG)
        return line.inner_text()

    @property
    def alert(self) -> Locator:
        """The fault box."""
        return self.page.locator(".recguide-lab [role=alert]")

    def newest(self, trace: str, count: int = 4) -> list[float]:
        """The last points of a trace as the browser has them."""
        script = f"""([name, count]) => {{
            const traces = document.querySelector('{FIGURE}').data;
            return Array.from(traces.find(trace => trace.meta === name).y ?? []).slice(-count);
        }}"""
        return self.page.evaluate(script, [trace, count])

    def ink(self) -> str:
        """The colour of the figure's text."""
        return self.page.evaluate(f"() => document.querySelector('{FIGURE}').layout.font.color")

    def until(self, holds: Callable[[], Any], seconds: float = LONG / 1000) -> None:
        """Wait until something holds."""
        for _ in range(int(seconds * 10)):
            if holds():
                return
            self.page.wait_for_timeout(100)
        raise AssertionError(
            f"still not so after {seconds} s; the state is {self.state!r}; the browser complained of {self.complaints}"
        )


class Notebook:
    """A notebook open in JupyterLab. ``shown``: the page has it open already."""

    def __init__(self, page: Page, server: Server, name: str, *, shown: bool = False):
        self.page, self.folder = page, server.folder
        page.on("dialog", lambda dialog: dialog.accept())  # leave, whatever was not saved
        self._address = f"{server.url}lab/tree/{name}"
        if not shown:
            page.goto(f"{self._address}?reset&token={server.token}")
        self.wait_idle()

    def reopen(self) -> None:
        """Save, close the page, and open it again."""
        self.page.evaluate(
            """patience => Promise.race([  // saving may ask a question, and wait for the answer
                window.jupyterapp.commands.execute("docmanager:save").then(() => true),
                new Promise((resolve) => setTimeout(resolve, patience)),
            ])""",
            SAVING,
        )
        self.page.goto("about:blank")
        self.page.goto(self._address)
        self.wait_idle()

    def interrupt(self) -> None:
        self._kernel("interrupt()")

    def restart(self) -> None:
        self._kernel("restart()")
        self.wait_idle()

    def _kernel(self, call: str) -> None:
        session = "window.jupyterapp.shell.currentWidget.context.sessionContext.session"
        self.page.evaluate(f"() => {session}.kernel.{call}")

    def wait_idle(self) -> None:
        kernel = "window.jupyterapp?.shell?.currentWidget?.context?.sessionContext?.session?.kernel"
        self.page.wait_for_function(f"{kernel}?.status === 'idle'", timeout=LONG)

    def command(self, name: str) -> None:
        self.page.evaluate("name => void window.jupyterapp.commands.execute(name)", name)

    def run_all(self) -> None:
        self.command("notebook:run-all-cells")

    def value(self, expression: str) -> str:
        """The repr of an expression in the kernel; asked again where a page that just connected lost the answer."""
        script = """async ([expression, patience]) => {
            const kernel = window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel;
            const asked = { code: "", silent: true, user_expressions: { value: expression } };
            const late = new Promise((resolve) => setTimeout(resolve, patience));
            const reply = await Promise.race([kernel.requestExecute(asked).done, late]);
            if (!reply) return null;
            const value = reply.content.user_expressions.value;
            return value.status === "ok" ? value.data["text/plain"] : value.ename + ": " + value.evalue;
        }"""
        for _ in range(ASKED):
            value = self.page.evaluate(script, [expression, LONG])
            if value is not None:
                return value
        raise AssertionError(f"the kernel does not answer {expression!r}")

    def start(self, code: str) -> None:
        """Run code in the kernel without waiting for it."""
        script = """code => {
            window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel.requestExecute({ code });
        }"""
        self.page.evaluate(script, code)

    def errors(self) -> list[str]:
        """Error outputs of all cells."""
        return self.page.locator(
            ".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']"
        ).all_inner_texts()
