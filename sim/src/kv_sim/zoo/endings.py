"""Planted in ``LaterConnector``: a resource that stays open after its shutdown."""

import os
import weakref
from socket import socket
from typing import Any

from kv_api import ForwardContext
from kv_sim.examples.later import Jobs, LaterConnector, LaterWorker


class _LeavesItsSocketOpen(LaterWorker):
    _wire: int | None = None

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        jobs = self._get_connector_metadata()
        assert isinstance(jobs, Jobs)
        if jobs.loads and self._wire is None:
            self._wire = socket().detach()
            weakref.finalize(self, os.close, self._wire)  # otherwise a hunt would run out of descriptors
        super().start_load_kv(forward_context, **kwargs)


class LeavesItsSocketOpen(LaterConnector):
    """A worker opens a socket for its first load, and ``shutdown`` doesn't close it."""

    worker_class = _LeavesItsSocketOpen
