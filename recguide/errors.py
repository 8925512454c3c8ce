"""Faults that a person can mend: the message is one line and says what was wrong, where, and what to do."""


class RecGuideError(ValueError):
    """A fault of the input or the environment; the command line prints its message without a traceback."""
