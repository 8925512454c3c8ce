"""Controls made from what settings and policies declare of themselves: names, ranges, units and help.

A handler only queues a command at the session; what the session then says is shown back by the dashboard's owner.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
from recguide.lab import controller
from recguide.lab.guard import guarded
from recguide.lab.session import LabSession
from recguide.lab.settings import KNOBS, PATTERNS, PRESETS, preset

from recguide.policies import POLICIES, Knob, Policy

WIDTH = "360px"
STYLE = {"description_width": "150px"}
WIDE = 1000  # a range beyond this is typed, not dragged


def button(session: LabSession, text: str, tooltip: str, handler: Callable[[], Any], icon: str = "") -> widgets.Button:
    """A button that also answers while a cell runs.

    Messages of a widget go to the thread that last published on it; a plain button never publishes, and so waits for
    the running cell. Touching its own tooltip keeps it on the other thread.
    """
    made = widgets.Button(description=text, tooltip=tooltip, icon=icon, layout=widgets.Layout(width="auto"))
    act = guarded(session, lambda _: handler())

    def clicked(pressed: widgets.Button) -> None:
        pressed.tooltip = tooltip if pressed.tooltip != tooltip else tooltip + " "
        act(pressed)

    made.on_click(clicked)
    return made


def slider(knob: Knob, value: float) -> widgets.Widget:
    """A slider with a number to type into beside it; whole numbers where the knob's default is one."""
    label = f"{knob.name.replace('_', ' ')}, {knob.unit}" if knob.unit else knob.name.replace("_", " ")
    shared = {
        "value": value,
        "min": knob.low,
        "max": knob.high,
        "description": label,
        "tooltip": f"{knob.name}: {knob.help} ({knob.low} to {knob.high}{' ' + knob.unit if knob.unit else ''})",
        "continuous_update": False,
        "style": STYLE,
        "layout": widgets.Layout(width=WIDTH),
    }
    if not isinstance(knob.default, int | float):
        return _worded(knob, value)
    if knob.high - knob.low > WIDE:
        kind = widgets.BoundedIntText if isinstance(knob.default, int) else widgets.BoundedFloatText
        return kind(**{name: given for name, given in shared.items() if name != "continuous_update"})
    if isinstance(knob.default, int):
        return widgets.IntSlider(**shared)
    return widgets.FloatSlider(**shared, step=(knob.high - knob.low) / 100, readout_format=".2f")


def _worded(knob: Knob, value: Any) -> widgets.Widget:
    """A list for a knob with choices; a box for files, block sets and schedules."""
    layout, name = widgets.Layout(width=WIDTH), knob.name.replace("_", " ")
    tip = {"description": name, "tooltip": f"{knob.name}: {knob.help}", "style": STYLE, "layout": layout}
    if choices := getattr(knob, "choices", ()):
        return widgets.Dropdown(options=choices, value=value, **tip)
    return widgets.Text(value=knob.text(value), continuous_update=False, **tip)


class Controls:
    """Everything a person turns. ``show`` is called by the owner only."""

    def __init__(self, session: LabSession):
        self._session = session
        self._showing: int | None = None
        self._shown: tuple[Any, ...] | None = None
        self.sliders = {knob.name: slider(knob, getattr(session.settings, knob.name)) for knob in KNOBS.values()}
        self.policy = self._choice("policy", list(POLICIES), "how each step is planned; knobs of its own below")
        self.category = self._choice("prompts", session.supply.categories, "kind of prompts; from the next request on")
        self.pattern = self._choice("arrivals", list(PATTERNS), "; ".join(PATTERNS.values()))
        self.preset = self._choice("preset", ["(own)", *PRESETS], "; ".join(f"{k}: {v[0]}" for k, v in PRESETS.items()))
        self.knobs = {name: self._knobs_of(name, cls) for name, cls in POLICIES.items()}
        self._listen()
        self.widget = self._arranged()
        self.show()

    def _choice(self, label: str, options: list[str], tooltip: str) -> widgets.Dropdown:
        layout = widgets.Layout(width=WIDTH)
        return widgets.Dropdown(options=options, description=label, tooltip=tooltip, style=STYLE, layout=layout)

    def _knobs_of(self, name: str, cls: type[Policy]) -> dict[str, widgets.Widget]:
        made = {knob.name: slider(knob, knob.default) for knob in cls.knobs}
        for one in made.values():
            self._on(one, lambda _, name=name: self._set_policy(name))
        return made

    def _listen(self) -> None:
        for name, one in self.sliders.items():
            self._on(one, lambda value, name=name: self._session.change(**{name: value}))
        self._on(self.policy, self._set_policy)
        self._on(self.category, lambda value: self._session.change(category=value))
        self._on(self.pattern, lambda value: self._session.change(pattern=value))
        self._on(self.preset, self._set_preset)

    def _on(self, widget: widgets.Widget, handler: Callable[[Any], None]) -> None:
        act = guarded(self._session, handler)

        def changed(change: dict[str, Any]) -> None:
            if self._showing != threading.get_ident():  # a person did it, and not ``show``
                act(change["new"])

        widget.observe(changed, "value")

    def _set_policy(self, name: str) -> None:
        self._session.change(policy=self.spec_of(name))

    def spec_of(self, name: str) -> str:
        """The chosen policy with its knobs as they stand, in its shortest form."""
        knobs = {knob.name: knob for knob in POLICIES[name].knobs}
        return controller.spec(name, {k: knobs[k].check(one.value, name) for k, one in self.knobs[name].items()})

    def _set_preset(self, name: str) -> None:
        if name in PRESETS:
            self._session.change(**preset(name, seed=self._session.settings.seed).to_dict())

    def show(self) -> None:
        """Show what the session has; sends nothing where that is what is shown already."""
        session = self._session
        now = (session.settings, len(session.faults), tuple(session.supply.categories))
        if now == self._shown:
            return
        self._shown = now
        self._showing = threading.get_ident()
        try:
            self._show()
        finally:
            self._showing = None

    def _show(self) -> None:
        session, settings = self._session, self._session.settings
        for name, one in self.sliders.items():
            one.value = getattr(settings, name)
        name = settings.policy.split(":")[0]
        self.policy.value = name
        for knob in POLICIES[name].knobs:
            held = getattr(session.policy.inner, knob.name, knob.default)
            self.knobs[name][knob.name].value = held if isinstance(held, int | float) else knob.text(held)
        if tuple(self.category.options) != tuple(session.supply.categories):
            self.category.options = session.supply.categories
        self.category.value, self.pattern.value = settings.category, settings.pattern
        kept = {"seed": settings.seed}
        self.preset.value = next((p for p in PRESETS if preset(p, **kept) == settings), "(own)")
        for other, box in self._boxes.items():
            box.layout.display = None if other == name else "none"

    def _arranged(self) -> widgets.Widget:
        s = self.sliders
        # a knob that the session has, too, is turned there
        own = {name: [one for k, one in knobs.items() if k not in s] for name, knobs in self.knobs.items()}
        self._boxes = {name: widgets.VBox(each) for name, each in own.items()}
        columns = (
            (self.preset, s["concurrency"], self.pattern, s["rate"], s["period"]),
            (self.policy, *self._boxes.values(), s["trim"], s["branches"], s["explore"]),
            (self.category, s["temperature"], s["max_new_tokens"], s["seed"]),
        )
        titles = ("Load", "Plan", "Requests")
        heads = (widgets.HTML(f"<b>{title}</b>") for title in titles)
        boxes = [widgets.VBox([head, *column]) for head, column in zip(heads, columns, strict=True)]
        return widgets.HBox(boxes, layout=widgets.Layout(flex_flow="row wrap"))
