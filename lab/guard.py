"""Where every fault of the dashboard ends: one visible box. No callback may fail in silence (rule R8).

Faults come from several threads; the box itself is drawn by the dashboard's owner only.
"""

from __future__ import annotations

import functools
import html
import logging
import time
import traceback
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
from recguide.lab.session import Fault, LabSession

from recguide.errors import RecGuideError

log = logging.getLogger(__name__)


def report(session: LabSession, error: BaseException) -> None:
    """Keep an error for the box: a message a person can act on alone, anything else with its traceback."""
    if isinstance(error, RecGuideError):
        session.fault(error)
        return
    details = "".join(traceback.format_exception(error))
    log.error("%s", details)
    session.fault(f"{type(error).__name__}: {error}", details)


def guarded(session: LabSession, handler: Callable[..., Any]) -> Callable[..., None]:
    """A callback that cannot raise: widgets swallow what handlers raise, or show it under some other cell."""

    @functools.wraps(handler)
    def safe(*arguments: Any) -> None:
        try:
            handler(*arguments)
        except Exception as error:
            report(session, error)

    return safe


def time_of_day(at: float) -> str:
    """A ``time.time`` as a message shows it."""
    return time.strftime("%H:%M:%S", time.localtime(at))


class FaultBox:
    """The newest fault, how many came before it, a fold with details, and a button that puts it away."""

    def __init__(self, session: LabSession):
        self._session = session
        self._text = widgets.HTML()
        self._text.add_class("recguide-fault")
        self._close = widgets.Button(description="Dismiss", tooltip="Put this message away", icon="times")
        self._close.on_click(guarded(session, lambda _: session.faults.clear()))
        self.widget = widgets.HBox([self._text, self._close], layout=widgets.Layout(display="none"))
        self.widget.add_class("recguide-faults")
        self._shown: tuple[Fault, ...] = ()

    def draw(self) -> None:
        """Show what there is; costs nothing while nothing changed."""
        faults = tuple(self._session.faults)
        if faults == self._shown:
            return
        self._shown = faults
        self._text.value = _fault_html(faults[-1], len(faults) - 1) if faults else ""
        self.widget.layout.display = "flex" if faults else "none"


def _fault_html(fault: Fault, before: int) -> str:
    at = time_of_day(fault.at)
    more = f" <small>({before} more before it)</small>" if before else ""
    fold = (
        f"<details><summary>Details</summary><pre>{html.escape(fault.details)}</pre></details>" if fault.details else ""
    )
    return f'<div role="alert"><b>{at}</b> {html.escape(fault.message)}{more}{fold}</div>'
