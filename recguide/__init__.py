"""Reciprocal Guidance: a decode engine for diffusion-AR self-speculation that plans every forward pass."""

from importlib.metadata import version

__version__ = version("recguide")
