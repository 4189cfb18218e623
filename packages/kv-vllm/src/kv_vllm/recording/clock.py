"""Reads the time at which a request arrives, for a trace. Nothing is decided by it."""

from time import time as read_clock

__all__ = ["read_clock"]
