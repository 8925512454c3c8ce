"""A person at the live lab, played in a real browser against a real JupyterLab and a real Voila."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("playwright", reason="playwright is not installed; pip install -e '.[dev]'")

from playwright.sync_api import expect
from recguide.lab.robot import Dashboard, Notebook

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def press_concurrency(lab: Dashboard, keys: int) -> None:
    """Right with the arrow key, as often as it takes: the slider works by keyboard."""
    handle = lab.slider("concurrency")
    handle.focus()
    for _ in range(keys):
        handle.press("ArrowRight")


def drive(lab: Dashboard, *, start: int) -> None:
    """What the issue asks of both: drag, switch, pause, resume, train, export, load, stop."""
    alone = lab.newest("aggregate")
    press_concurrency(lab, 1)
    lab.until(lambda: lab.running()[1] == start + 1)
    lab.drag("concurrency", 8)
    lab.until(lambda: lab.running()[1] == 8)
    lab.until(lambda: lab.running()[0] == 8)
    lab.until(lambda: lab.newest("aggregate") != alone)

    lab.choose("policy", "ar")
    lab.wait_policy("ar ")
    lab.until(lambda: lab.newest("mix", 9)[0] > 90)  # plain steps verify no draft

    lab.press("Pause")
    lab.wait_state("paused")
    lab.until(lambda: stands_still(lab, 1500))  # the step under way is made to its end
    before = lab.tokens()
    assert stands_still(lab, 1500)
    lab.press("Step once")
    lab.until(lambda: lab.tokens() > before)
    stepped = lab.tokens()
    lab.page.wait_for_timeout(500)
    assert lab.tokens() == stepped
    look_closer(lab)
    lab.button("Pause").focus()
    lab.page.keyboard.press("Space")
    lab.wait_state("running")
    lab.until(lambda: lab.tokens() > stepped)
    controller(lab)


def stands_still(lab: Dashboard, milliseconds: float) -> bool:
    before = lab.tokens()
    lab.page.wait_for_timeout(milliseconds)
    return lab.tokens() == before


def look_closer(lab: Dashboard) -> None:
    """Hovering a token, or moving to it by keyboard, tells what it is."""
    token = lab.page.locator(".recguide-lab .rg-tokens .rg-token").last
    tip = token.locator(".rg-tip")
    token.hover()
    expect(tip).to_be_visible()
    assert re.search(r"\(id \d+\): (plain|accepted|bonus|correction|rejected|draft)", tip.inner_text())
    lab.page.mouse.move(0, 0)
    expect(tip).not_to_be_visible()
    token.focus()
    expect(tip).to_be_visible()


def controller(lab: Dashboard) -> None:
    """Train, export, load; and first what is said when there is nothing to export."""
    lab.tab("Controller")
    lab.press("Export controller")
    lab.result("export: failed")
    assert "press 'Train on this session' first" in lab.alert.inner_text()
    lab.press("Dismiss")
    lab.choose("preset", "changing load")
    explore = lab.slider("explore")
    explore.focus()
    explore.press("End")
    before = lab.tokens()
    lab.until(lambda: lab.tokens() > before + 900)
    lab.press("Train on this session")
    lab.result("train: controller written")
    lab.press("Export controller")
    lab.result("export: controller exported")
    lab.press("Load controller")
    lab.result("load: planning with")
    lab.wait_policy("recguide")


def end(lab: Dashboard) -> None:
    lab.press("Stop")
    lab.wait_state("stopped")
    lab.assert_no_complaints()


def test_the_lab_in_jupyterlab(page, lab_server, shots):
    notebook = Notebook(page, lab_server, "4_live_lab.ipynb")
    lab = Dashboard(page)
    notebook.run_all()
    lab.wait()
    lab.until(lambda: lab.running()[1] == 2)  # the notebook's last cell turned this knob
    drive(lab, start=2)
    assert notebook.value("lab.session.settings.concurrency") in ("8", "16")
    assert notebook.errors() == []
    settle(lab)
    notebook.command("application:toggle-left-area")  # what most people do at this width
    photograph(lab, shots, "light")
    dark(notebook)
    lab.until(lambda: lab.ink() == "#e8e8e8")
    photograph(lab, shots, "dark")
    while_a_cell_runs(lab, notebook)
    after_a_reload(lab, notebook)
    after_a_restart(lab, notebook)
    end(lab)
    threads = notebook.value("[t.name for t in __import__('threading').enumerate() if t.name.startswith('recguide')]")
    assert threads == "[]"


def dark(notebook: Notebook) -> None:
    notebook.page.evaluate(
        "() => void window.jupyterapp.commands.execute('apputils:change-theme', { theme: 'JupyterLab Dark' })"
    )


def while_a_cell_runs(lab: Dashboard, notebook: Notebook) -> None:
    """A knob reaches the engine while the main thread is blocked; an interrupt ends the cell and nothing else."""
    notebook.start("import time; began = time.perf_counter(); time.sleep(60)")
    lab.page.wait_for_timeout(300)
    lab.choose("policy", "window")
    press_concurrency(lab, 1)
    lab.press("Stop")
    lab.page.wait_for_timeout(2500)
    notebook.interrupt()
    assert notebook.value("[c.at - began < 2.5 for c in list(lab.session.changes)[-2:]]") == "[True, True]"
    lab.wait_state("stopped")
    lab.press("Start")
    lab.wait_state("running")
    assert float(notebook.value("time.perf_counter() - began")) < 30
    before = lab.tokens()
    lab.until(lambda: lab.tokens() > before)


def after_a_reload(lab: Dashboard, notebook: Notebook) -> None:
    """The tab is closed and opened again in mid-run: the session went on, and the page comes back."""
    before = lab.tokens()
    notebook.reopen()
    lab.wait()
    assert lab.tokens() > before
    press_concurrency(lab, 1)
    lab.until(lambda: lab.running()[1] == int(notebook.value("lab.session.settings.concurrency")) > 1)
    lab.press("Pause")
    lab.wait_state("paused")
    notebook.reopen()  # now nothing new is sent, and the page shows what the one before showed
    lab.wait_figure()
    script = "[float(v) for v in __import__('recguide.lab.figure').lab.figure.points(lab.dashboard.figure, 'mix')]"
    assert lab.newest("mix", 9) == pytest.approx(json.loads(notebook.value(script)))
    lab.press("Pause")


def after_a_restart(lab: Dashboard, notebook: Notebook) -> None:
    """A new kernel takes up the state of the old one."""
    seed = int(notebook.value("lab.session.settings.seed"))
    notebook.value(f"lab.session.change(seed={seed + 5}, category='math')")
    lab.until(lambda: notebook.value("lab.session.settings.seed") == str(seed + 5))
    lab.until(lambda: f'"seed": {seed + 5}' in (notebook.folder / "lab-session" / "lab-state.json").read_text())
    notebook.restart()
    notebook.run_all()
    lab.until(lambda: notebook.value("lab.session.settings.seed") == str(seed + 5))
    lab.wait()
    assert notebook.value("lab.session.settings.category") == "'math'"


def settle(lab: Dashboard) -> None:
    """Something of everything in the panels."""
    lab.choose("policy", "overlap")
    lab.wait_policy("overlap")
    lab.page.wait_for_timeout(4000)


def photograph(lab: Dashboard, folder, theme: str) -> None:
    lab.page.set_viewport_size({"width": 1280, "height": 2000})
    lab.page.wait_for_timeout(2500)
    lab.page.locator(".recguide-lab").screenshot(path=folder / f"dashboard-{theme}.png")
    lab.page.set_viewport_size({"width": 1280, "height": 1000})


def test_the_dashboard_as_a_page(page, app_server, shots):
    lab = Dashboard(page)
    page.goto(app_server.url, timeout=120_000)
    lab.wait()
    drive(lab, start=lab.running()[1])
    photograph(lab, shots, "app")
    lab.assert_no_complaints()
    lab.page.reload(timeout=120_000)
    lab.wait()  # in another kernel
    lab.complaints.clear()  # Voila's own farewell to the old one, which it then refuses
    assert lab.running()[1] >= 8
    end(lab)
