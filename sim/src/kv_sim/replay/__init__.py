"""Replay of recorded request traces: what a host cache of some size would have been worth.

``open_trace`` reads a trace, ``replay`` runs it through the real manager, ``size`` says how much memory to buy.
"""

from typing import TYPE_CHECKING

from kv_api.exports import imported_later

if TYPE_CHECKING:
    from kv_sim.replay.api import CacheReplay, Columns, Sizing, TraceOptions, open_trace, replay, size

__all__ = ["CacheReplay", "Columns", "Sizing", "TraceOptions", "open_trace", "replay", "size"]


if not TYPE_CHECKING:  # other parts of this package need less
    __getattr__ = imported_later(globals(), dict.fromkeys(__all__, "kv_sim.replay.api"))
