"""Tests of the Triton kernels under Triton's interpreter, on a CPU.

    TRITON_INTERPRET=1 python -m pytest -n 0 tests/kernels/interpreted

The switch is read when a kernel is imported, so that a process runs either these tests or all others;
``tests/kernels/test_interpreter.py`` starts these in processes of their own.
"""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
