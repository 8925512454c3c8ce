"""A person at the live lab, played in a real browser against a real JupyterLab and a real Voila."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("playwright", reason="pytest-playwright is not installed; pip install -e '.[dev]'")

from recguide.lab.robot import Dashboard, Notebook

CAN_TRAIN = importlib.util.find_spec("recguide.predictors.fit") is not None
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def drag_concurrency(lab: Dashboard, keys: int) -> None:
    """Right with the arrow key, as often as it takes: the slider works by keyboard."""
    handle = lab.slider("concurrency")
    handle.focus()
    for _ in range(keys):
        handle.press("ArrowRight")


def drive(lab: Dashboard, *, start: int) -> None:
    """What the issue asks of both: drag, switch, pause, resume, train, export, load, stop."""
    alone = lab.newest("aggregate")
    drag_concurrency(lab, 8 - start)
    lab.until(lambda: lab.running()[1] == 8)
    lab.until(lambda: lab.running()[0] == 8)
    lab.until(lambda: lab.newest("aggregate") != alone)

    lab.choose("policy", "ar")
    lab.wait_state("policy ar ")
    lab.until(lambda: lab.newest("mix", 9)[0] > 90)  # plain steps verify no draft

    lab.press("Pause")
    lab.wait_state("paused")
    lab.page.wait_for_timeout(500)
    before = lab.tokens()
    lab.page.wait_for_timeout(1500)
    assert lab.tokens() == before
    lab.press("Step once")
    lab.until(lambda: lab.tokens() > before)
    stepped = lab.tokens()
    lab.page.wait_for_timeout(500)
    assert lab.tokens() == stepped
    lab.press("Pause")
    lab.wait_state("running")
    lab.until(lambda: lab.tokens() > stepped)
    controller(lab)


def controller(lab: Dashboard) -> None:
    """Train, export, load; where the trainer is not installed, each says so in words."""
    lab.tab("Controller")
    lab.press("Export controller")
    lab.result("export: failed")
    assert "press 'Train on this session' first" in lab.alert.inner_text()
    lab.press("Dismiss")
    if not CAN_TRAIN:
        lab.press("Train on this session")
        lab.result("train: failed")
        assert "training is not possible here" in lab.alert.inner_text()
        lab.press("Dismiss")
        return
    lab.choose("preset", "changing load")
    explore = lab.slider("explore")
    explore.focus()
    explore.press("End")
    before = lab.tokens()
    lab.until(lambda: lab.tokens() > before + 1500)
    lab.press("Train on this session")
    lab.result("train: controller written")
    lab.press("Export controller")
    lab.result("export: controller exported")
    lab.press("Load controller")
    lab.result("load: planning with")
    lab.wait_state("policy recguide")


def end(lab: Dashboard) -> None:
    lab.press("Stop")
    lab.wait_state("stopped")
    lab.assert_no_complaints()


def test_the_lab_in_jupyterlab(page, lab_server, shots):
    notebook = Notebook(page, lab_server.url, lab_server.token, "4_live_lab.ipynb")
    lab = Dashboard(page)
    notebook.run_all()
    lab.wait()
    lab.until(lambda: lab.running()[1] == 2)  # the notebook's last cell turned this knob
    drive(lab, start=2)
    assert notebook.value("lab.session.settings.concurrency") in ("8", "16")
    assert notebook.errors() == []
    settle(lab)
    photograph(lab, shots, "light")
    dark(notebook)
    lab.until(lambda: lab.ink() == "#e8e8e8")
    photograph(lab, shots, "dark")
    end(lab)
    threads = notebook.value("[t.name for t in __import__('threading').enumerate() if t.name.startswith('recguide')]")
    assert threads == "[]"


def dark(notebook: Notebook) -> None:
    notebook.page.evaluate(
        "() => void window.jupyterapp.commands.execute('apputils:change-theme', { theme: 'JupyterLab Dark' })"
    )


def settle(lab: Dashboard) -> None:
    """Something of everything in the panels."""
    lab.choose("policy", "overlap")
    lab.wait_state("policy overlap")
    lab.page.wait_for_timeout(6000)


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
    end(lab)
