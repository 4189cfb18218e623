"""Waiting for what another thread does. Every limit is an upper bound: nothing waits longer than it has to."""

import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

LIMIT_SECONDS = 30.0


class Background:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._outcome: list[Any] = []
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._outcome.append(call(*arguments))
            except BaseException as error:  # noqa: BLE001 - it is raised again by `result`
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> Any:
        """What the call returned or raised."""
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive(), f"still running after {LIMIT_SECONDS} s"
        if self._error is not None:
            raise self._error
        return self._outcome[0]


def wait_until(condition: Callable[[], object]) -> None:
    """Look again and again until something holds."""
    deadline = monotonic() + LIMIT_SECONDS
    while not condition():
        assert monotonic() < deadline, f"did not come about in {LIMIT_SECONDS} s"
        sleep(0.001)
