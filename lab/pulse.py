"""A small widget without a face: the browser answers each drawing, and says whether it is seen and in which theme.

It also gives sliders the accessible names that ipywidgets leaves out, and carries the dashboard's style sheet.
"""

from __future__ import annotations

import time
from typing import Any

import anywidget
import traitlets

# A string, not a path: anywidget keeps every instance alive whose source is a path.
SCRIPT = """
function theme() {
  const light = document.body.dataset.jpThemeLight;
  if (light !== undefined) return light === "false" ? "dark" : "light";
  return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function nameSliders() {
  for (const slider of document.querySelectorAll(".recguide-lab .widget-slider, .recguide-lab .slider-container")) {
    const box = slider.closest(".widget-inline-hbox") ?? slider;
    const label = box.querySelector(".widget-label")?.textContent;
    for (const handle of box.querySelectorAll("[role=slider], input")) {
      if (label && handle.getAttribute("aria-label") !== label) handle.setAttribute("aria-label", label);
    }
  }
}

function render({ model, el }) {
  el.style.display = "none";
  // long tasks of the page: what drawing takes of a core (not every browser tells)
  let busy = 0;
  let timer = null;
  if (PerformanceObserver.supportedEntryTypes?.includes("longtask")) {
    timer = new PerformanceObserver((list) => list.getEntries().forEach((task) => { busy += task.duration; }));
    timer.observe({ type: "longtask" });
  }
  const say = (tick) => {
    const seen = document.visibilityState === "visible";
    try {
      model.send({ tick, theme: theme(), seen, busy: timer ? busy / 1000 : null });
    } catch {
      return;  // the kernel is gone: an answer was under way, and nobody waits for it
    }
    busy = 0;
  };
  const answer = () => {
    nameSliders();
    const tick = model.get("tick");
    // a hidden page gets no animation frames
    if (document.visibilityState !== "visible") { say(tick); return; }
    requestAnimationFrame(() => setTimeout(() => say(tick)));
  };
  const changed = () => say(model.get("tick"));
  model.on("change:tick", answer);
  document.addEventListener("visibilitychange", changed);
  const watcher = new MutationObserver(changed);
  watcher.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  answer();
  return () => {
    model.off("change:tick", answer);
    document.removeEventListener("visibilitychange", changed);
    watcher.disconnect();
    timer?.disconnect();
  };
}
export default { render };
"""

STYLE = """
.recguide-lab { color: var(--jp-ui-font-color1, #222); }
.recguide-faults { border: 1px solid var(--jp-error-color1, #c00); border-left-width: 6px; padding: 4px 8px; gap: 8px; }
.recguide-faults pre { max-height: 14em; overflow: auto; }
.recguide-fault { flex: 1 1 auto; }
.recguide-state { line-height: 1.5; }
.recguide-lab table { border-collapse: collapse; }
.recguide-lab th, .recguide-lab td { padding: 2px 10px 2px 0; text-align: right; }
.recguide-lab th:first-child, .recguide-lab td:first-child { text-align: left; }
.rg-round { display: flex; gap: 8px; align-items: flex-start; margin: 1px 0; }
.rg-note { flex: 0 0 20em; color: var(--jp-ui-font-color2, #666); font-size: 85%; line-height: 1.6; }
.rg-tokens { flex: 1 1 auto; display: flex; flex-wrap: wrap; row-gap: 2px; }
.rg-token { position: relative; white-space: pre; font-family: var(--jp-code-font-family, monospace);
  padding: 0 1px; margin-right: 1px; border-bottom: 3px solid transparent; line-height: 1.35; color: #111; }
.rg-token small { display: block; font-size: 9px; line-height: 10px; opacity: 0.8; }
.rg-accepted { background: #b7e1c0; border-color: #1b7837; }
.rg-correction { background: #fdd0a2; border-color: #d94801; border-bottom-style: double; }
.rg-bonus { background: #c6dbef; border-color: #2171b5; border-bottom-style: dashed; }
.rg-plain { background: #e4e4e4; border-color: #888; }
.rg-rejected { background: #f4c7d0; border-color: #b2182b; text-decoration: line-through; }
.rg-unread { background: #f3f0f7; border-color: #b8a9cf; border-bottom-style: dotted; color: #666; }
.rg-token:focus { outline: 2px solid var(--jp-brand-color1, #1976d2); }
.rg-tip { display: none; position: absolute; z-index: 10; left: 0; top: 100%; white-space: pre; text-align: left;
  background: var(--jp-layout-color0, #fff); color: var(--jp-ui-font-color0, #000); padding: 4px 8px;
  border: 1px solid var(--jp-border-color1, #999); font-size: 12px; text-decoration: none; }
.rg-token:hover > .rg-tip, .rg-token:focus > .rg-tip { display: block; }
.rg-legend span { margin-right: 8px; }
"""


class Pulse(anywidget.AnyWidget):
    """Set ``tick`` after drawing; ``answered`` follows when the browser has painted it."""

    _esm = SCRIPT
    _css = STYLE
    tick = traitlets.Int(0).tag(sync=True)

    def __init__(self) -> None:
        super().__init__()
        self.theme = "light"
        self.seen = True
        self.answered = 0
        self.painted_in = 0.1  # seconds of the browser's work for a drawing, smoothed; of waiting where it cannot tell
        self._sent_at = self._heard_at = time.perf_counter()
        self.on_msg(self._hear)

    def beat(self) -> None:
        """Ask the browser to answer once it has painted everything sent so far."""
        self._sent_at = time.perf_counter()
        self.tick += 1

    @property
    def waiting(self) -> bool:
        """The last tick has no answer yet."""
        return self.answered < self.tick

    @property
    def waited(self) -> float:
        """Seconds since the last tick."""
        return time.perf_counter() - self._sent_at

    @property
    def silent_for(self) -> float:
        """Seconds since the browser was last heard of, or since there was something to answer."""
        return time.perf_counter() - self._heard_at

    def _hear(self, _widget: Any, content: Any, _buffers: Any) -> None:
        """On whichever thread messages arrive: keeps values, draws nothing."""
        self.theme, self.seen = content["theme"], content["seen"]
        self._heard_at = time.perf_counter()
        if content["tick"] == self.tick and self.waiting:
            took = self.waited if content["busy"] is None else content["busy"]
            self.painted_in += 0.3 * (took - self.painted_in)
        self.answered = max(self.answered, content["tick"])
