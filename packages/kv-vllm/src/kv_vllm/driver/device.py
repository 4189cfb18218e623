"""``TensorDevice``: the testbed's device, whose memory vLLM's connectors see as tensors."""

import threading
from time import sleep

from kv_sim.memory.device import Device
from kv_sim.memory.launched import LaunchedStep

PAUSE_SECONDS = 0.01
"""For each step in which nothing moves; an engine takes some hundred before it is stuck."""


class TensorDevice(Device):
    """A device of which somebody may have an address.

    Code that reads by an address isn't seen, and can't be made to wait for a step. So a step runs as soon as it is
    launched, unless who copies does that through the testbed.
    """

    is_read_by_address = False

    def launch(self, step: LaunchedStep) -> None:
        """Queue a step, and run it if nobody would wait for it."""
        super().launch(step)
        if self.is_read_by_address:
            self.synchronize()

    def let_others_work(self) -> None:
        """Give threads of a connector's own, which may be copying, some time."""
        if self.is_read_by_address:
            sleep(PAUSE_SECONDS)

    def is_in_between(self, what: str) -> bool:
        """Whether a thread of the connector's own asks. Refused where steps are waited for: it can't."""
        if threading.get_ident() == self._thread:
            return False
        if not self.is_read_by_address:
            self.must_be_in_turn(what)
        return True
