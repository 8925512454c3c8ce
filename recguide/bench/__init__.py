"""Measuring: prompt sets, our engine under load, and other engines beside it."""
