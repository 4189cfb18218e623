"""Replay of recorded request traces: what a host cache of some size would have been worth.

``open_trace`` reads a trace, ``replay`` runs it through the real manager, ``size`` says how much memory to buy.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kv_sim.replay.api import CacheReplay, Columns, Sizing, TraceOptions, open_trace, replay, size

__all__ = ["CacheReplay", "Columns", "Sizing", "TraceOptions", "open_trace", "replay", "size"]


if not TYPE_CHECKING:  # a checker that saw it would take every misspelt name for an Any

    def __getattr__(name: str) -> Any:
        """Import what reads and replays when it is asked for: other parts of this package need less."""
        if name not in __all__:
            raise AttributeError(f"module 'kv_sim.replay' has no attribute {name!r}; it has {', '.join(__all__)}")
        from kv_sim.replay import api

        return getattr(api, name)
