"""``TensorDevice``: the testbed's device, whose memory vLLM's connectors see as tensors."""

import threading
from time import sleep

from kv_sim.memory.device import Device
from kv_sim.memory.launched import LaunchedStep

PAUSE_SECONDS = 0.01
"""Seconds to sleep in each step in which nothing moves; after some hundred of them an engine counts as stuck."""


class TensorDevice(Device):
    """A device whose memory a connector may access by address.

    The testbed doesn't see accesses by address, and can't make them wait for a step. So a step runs as soon as it
    is launched, unless the connector copies through the testbed.
    """

    is_read_by_address = False

    def launch(self, step: LaunchedStep) -> None:
        """Queue a step, and run it at once if accesses of the connector wouldn't wait for it."""
        super().launch(step)
        if self.is_read_by_address:
            self.synchronize()

    def let_others_work(self) -> None:
        """Give a connector's own threads, which may be copying, some time."""
        if self.is_read_by_address:
            sleep(PAUSE_SECONDS)

    def is_in_between(self, what: str) -> bool:
        """Whether the caller is a thread of the connector's own. An error if steps run late: it couldn't wait."""
        if threading.get_ident() == self._thread:
            return False
        if not self.is_read_by_address:
            self.must_be_in_turn(what)
        return True
