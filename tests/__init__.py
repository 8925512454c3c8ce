"""Tests mirror the tree. ``helpers`` has the small models and runs they share, ``reference`` the slow, plain model."""
