"""How the process uses memory on a CPU: what is freed is kept for the next step, kernels of shapes long gone are not.

glibc gives big blocks back to the system as soon as they are freed; a step that makes a few megabytes of logits then
pays one page fault per 4 kB, which costs up to half of a step in a virtual machine.
"""

from __future__ import annotations

import ctypes
import os
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT = 2**30  # bytes at the top of the heap that are not given back; blocks above are mapped on their own

# oneDNN keeps a kernel for every shape it has seen, 1,024 by default; attention has a new shape with every token, so
# that hundreds of megabytes are kept for shapes that do not come back. Read when the first product is made.
PRIMITIVES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")


def limit_kernel_cache() -> None:
    """Have oneDNN keep fewer kernels, unless the user has said how many."""
    os.environ.setdefault(*PRIMITIVES)


def keep_freed_memory() -> bool:
    """Ask the C library to keep what is freed for the next step. False where it is not glibc."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_THRESHOLD, KEPT)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT))
