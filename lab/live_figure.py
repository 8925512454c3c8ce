"""A FigureWidget that stays alive on a slow machine, after a reload of the page, and beside other threads.

plotly's script is 5 MB. As a widget's own module it must be compiled within 2 s, or anywidget drops every later
message: the figure is shown and never changes again. So the module here is a few lines, which load plotly's script in
their own time and then ask for the figure as it is by then; plotly itself would show it as it was built.
"""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import Any

import plotly.graph_objects as go
import traitlets

SCRIPT = """
async function load(source) {
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  try {
    return (await import(url)).default();
  } finally {
    URL.revokeObjectURL(url);
  }
}

export default () => {
  let plotly = null;
  return {
    initialize({ model }) {
      plotly = load(model.get("_script")).then((widget) => { widget.initialize({ model }); return widget; });
    },
    async render({ model, el, signal }) {
      const widget = await plotly;
      const fresh = new Promise((resolve) => model.on("change:_fresh", resolve));
      model.send("fresh");
      await fresh;
      if (!signal?.aborted) return widget.render({ model, el });
    },
  };
};
"""


class LiveFigure(go.FigureWidget):
    """Written by one thread, its owner's; messages from the browser are handled on the owner's loop, whichever thread
    they arrive on."""

    _esm = SCRIPT
    _script = traitlets.Unicode(str(go.FigureWidget._esm)).tag(sync=True)
    _fresh = traitlets.Int(0).tag(sync=True)

    def __init__(self, figure: go.Figure):
        super().__init__(figure)
        self.on_msg(lambda *_: self._send_all())

    def adopt(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Messages go to this loop from now on."""
        object.__setattr__(self, "_owner_loop", loop)

    def _handle_msg(self, msg: Any) -> None:
        loop = self.__dict__.get("_owner_loop")
        if loop is None or loop.is_closed():
            super()._handle_msg(msg)
        else:
            loop.call_soon_threadsafe(super()._handle_msg, msg)

    def _send_all(self) -> None:
        """The whole figure as it is now, in one message: plotly itself sends what it was built with."""
        with self.hold_sync():
            self._widget_layout = deepcopy(self._layout_obj._props)
            self._widget_data = deepcopy(self._data)
            self._fresh += 1
