"""``FlakyConnector``: a ``LaterConnector`` that breaks down, for whoever promises to survive that.

Each side raises once, in a call that depends on the sizes of the world. From then on it may be shut down and not
be called any more. What it was copying ends when it is shut down, as the contract has it.
"""

from collections.abc import Callable
from typing import Any, Final

from kv_api import KVCacheConfig, VllmConfig
from kv_sim.examples.later import LaterConnector, LaterScheduler, LaterWorker
from kv_sim.violation import CalledAgain

SCHEDULER_CALLS: Final = (
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished",
)
WORKER_CALLS: Final = ("start_load_kv", "get_transfer_results", "handle_preemptions", "wait_for_save")


def _number_of(config: VllmConfig, cache: KVCacheConfig | None) -> int:
    """A number that differs from world to world, and is the same for all who share one."""
    assert config.kv_transfer_config is not None
    assert cache is not None
    room: int = config.kv_transfer_config.kv_connector_extra_config["host_slots"]
    return cache.num_blocks + room // 2 + config.cache_config.block_size // 4


def _call_again(name: str) -> Callable[..., Any]:
    def is_called(*args: Any, **kwargs: Any) -> Any:
        raise CalledAgain(f"{name} is called, although this side broke down")

    return is_called


def _break_down(side: Any, calls: tuple[str, ...], number: int) -> None:
    """Have one of ``calls`` raise when it comes for the n-th time."""
    name, calls_left = calls[number % len(calls)], [1 + number // len(calls) % 7]
    method: Callable[..., Any] = getattr(side, name)

    def breaks_down(*args: Any, **kwargs: Any) -> Any:
        calls_left[0] -= 1
        if not calls_left[0]:
            for other in calls:
                setattr(side, other, _call_again(other))
            raise RuntimeError(f"the end of {name}")
        return method(*args, **kwargs)

    setattr(side, name, breaks_down)


class FlakyScheduler(LaterScheduler):
    """Breaks down in two worlds of three."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        number = _number_of(vllm_config, kv_cache_config)
        if number % 3 < 2:
            _break_down(self, SCHEDULER_CALLS, number)

    def shutdown(self) -> None:
        LaterScheduler.__init__(self, self._vllm_config, self._kv_cache_config)


class FlakyWorker(LaterWorker):
    """Breaks down in two worlds of three; in one of them the other side does, too."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        number = _number_of(vllm_config, kv_cache_config)
        if number % 3 > 0:
            _break_down(self, WORKER_CALLS, number)

    def shutdown(self) -> None:
        self._copies.wait([*self._loads, *self._stores])
        self._loads.clear()
        self._stores.clear()
        self.clear_connector_metadata()


class FlakyConnector(LaterConnector):
    """Raises once, somewhere."""

    scheduler_class = FlakyScheduler
    worker_class = FlakyWorker
