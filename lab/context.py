"""The context that the dashboard's widgets live in, so that they answer while a cell runs.

A kernel sends a widget's messages to the thread whose request last made that widget publish. A dashboard made and drawn
in a cell's context would have them wait for every later cell; published outside any request, they stay on the thread
that JupyterLab keeps for widgets.
"""

from __future__ import annotations

import contextvars


def outside_any_request() -> contextvars.Context:
    """A context without a parent request, where there is a kernel that knows contexts; else the present one."""
    present = contextvars.copy_context()
    try:
        import ipykernel
        from ipykernel.kernelbase import Kernel
    except ImportError:
        return present
    if ipykernel.version_info[0] < 7 or not Kernel.initialized():
        return present
    present.run(Kernel.set_parent, Kernel.instance(), [], {})
    return present
