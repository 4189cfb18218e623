"""Connectors that break down, to test connectors that must survive that, such as MultiConnector.

``FlakyConnector`` is a ``LaterConnector`` and ``FlakyPatientConnector`` a ``PatientConnector``, of which one side
raises, once. In which method that is, and after how many calls of it, follows from the sizes of the world. With
``"breaks": "busy"`` only calls count at which the side has work: the scheduler's a load or a store under way, a
worker's one to begin. After that the side must not be called again, except to be shut down, and neither may the
other side be, but for a few steps. What it was copying ends when it is shut down, as the contract has it.
"""

from collections.abc import Callable
from typing import Any, Final

from kv_api import KVCacheConfig, KVConnectorMetadata, SchedulerOutput, VllmConfig
from kv_sim.examples.later import Jobs, LaterConnector, LaterScheduler, LaterWorker
from kv_sim.examples.patient import PatientConnector, PatientScheduler, PatientWorker, Plan
from kv_sim.violation import CalledAgain

SCHEDULER_CALLS: Final = (
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished",
)
WORKER_CALLS: Final = ("start_load_kv", "get_transfer_results", "handle_preemptions", "wait_for_save")
"""Each of them comes once a step."""

MOST_STEPS_BEHIND: Final = 6
"""Within so many steps both sides must have learnt of the breakdown."""


def _number_of(config: VllmConfig, cache: KVCacheConfig | None) -> int:
    """A number that differs between worlds, and is the same for all sides within one."""
    assert config.kv_transfer_config is not None
    assert cache is not None
    room: int = config.kv_transfer_config.kv_connector_extra_config["host_slots"]
    return cache.num_blocks + room // 2 + config.cache_config.block_size // 4


def _breaks_when_busy(config: VllmConfig) -> bool:
    assert config.kv_transfer_config is not None
    return bool(config.kv_transfer_config.kv_connector_extra_config.get("breaks") == "busy")


def _call_again(name: str, but: str = "broke down") -> Callable[..., Any]:
    def is_called(*args: Any, **kwargs: Any) -> Any:
        raise CalledAgain(f"{name} is called, although this side {but}")

    return is_called


def _end(side: Any, calls: tuple[str, ...]) -> None:
    """Make any further call of one of ``calls`` an error."""
    for name in calls:
        setattr(side, name, _call_again(name))
    side.has_ended = True


def _end_for_good(side: Any) -> None:
    """Make a second shutdown an error."""
    side.shutdown = _call_again("shutdown", "was shut down before")
    side.has_ended = True


def _always(*args: Any) -> bool:
    return True


def _break_down(side: Any, calls: tuple[str, ...], number: int, counts: Callable[..., bool] = _always) -> None:
    """Let one of ``calls`` raise at its n-th time, of those that count."""
    name, calls_left = calls[number % len(calls)], [_break_after(calls, number)]
    method: Callable[..., Any] = getattr(side, name)

    def breaks_down(*args: Any, **kwargs: Any) -> Any:
        calls_left[0] -= counts(*args)
        if not calls_left[0]:
            _end(side, calls)
            raise RuntimeError(f"the end of {name}")
        return method(*args, **kwargs)

    setattr(side, name, breaks_down)


def _break_after(calls: tuple[str, ...], number: int) -> int:
    return 1 + number // len(calls) % 7


class FlakyScheduler(LaterScheduler):
    """Breaks down in two worlds of three."""

    has_ended = False

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        number = _number_of(vllm_config, kv_cache_config)
        self._steps_left: int | None = None
        if _breaks_when_busy(vllm_config):
            if number % 3 < 2:
                _break_down(self, SCHEDULER_CALLS, number, lambda *_: bool(self._loading or self._storing))
            return
        if number % 3 > 0:  # a worker breaks down
            self._steps_left = _break_after(WORKER_CALLS, number) + MOST_STEPS_BEHIND
        if number % 3 < 2:
            _break_down(self, SCHEDULER_CALLS, number)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Jobs:
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left < 0:
                raise CalledAgain(
                    f"a step is planned {MOST_STEPS_BEHIND} steps after the worker's side broke down"
                )
        return super().build_connector_meta(scheduler_output)

    def shutdown(self) -> None:
        LaterScheduler.__init__(self, self._vllm_config, self._kv_cache_config)
        _end_for_good(self)


class FlakyWorker(LaterWorker):
    """Breaks down in two worlds of three; in one of these the other side breaks down, too."""

    has_ended = False

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        number = _number_of(vllm_config, kv_cache_config)
        if number % 3 > 0:
            _break_down(self, WORKER_CALLS, number, self._begins if _breaks_when_busy(vllm_config) else _always)

    def _begins(self, *args: Any) -> bool:
        """Whether the step of a call begins copies: what all ranks agree on."""
        jobs = args[0] if args and isinstance(args[0], Jobs) else self._connector_metadata
        return isinstance(jobs, Jobs) and bool(jobs.loads or jobs.stores)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        _check_metadata(connector_metadata, Jobs)
        super().bind_connector_metadata(connector_metadata)

    def shutdown(self) -> None:
        self._copies.wait([*self._loads, *self._stores])
        self._loads.clear()
        self._stores.clear()
        self.clear_connector_metadata()
        _end_for_good(self)


class FlakyConnector(LaterConnector):
    """Raises once, somewhere."""

    scheduler_class = FlakyScheduler
    worker_class = FlakyWorker


class FlakyPatientScheduler(PatientScheduler):
    """Never breaks down, but may outlive the worker's side."""

    has_ended = False

    def shutdown(self) -> None:
        PatientScheduler.__init__(self, self._vllm_config, self._kv_cache_config)
        _end_for_good(self)


class FlakyPatientWorker(PatientWorker):
    """Breaks down in the n-th load that a step needs, before or after it began.

    Not where steps run ahead: there nobody can take back such a load, since later steps rest on it already.
    """

    has_ended = False

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        number = _number_of(vllm_config, kv_cache_config)
        self._loads_left: int | None = None
        self._waits = number % 2 == 0
        if getattr(vllm_config, "max_concurrent_batches", 1) == 1:
            self._loads_left = 1 + number // 3 % 3

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        _check_metadata(connector_metadata, Plan)
        super().bind_connector_metadata(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        if plan.loads and self._loads_left is not None:
            self._loads_left -= 1
            if not self._loads_left:
                if self._waits:
                    super().start_load_kv(forward_context, **kwargs)
                _end(self, WORKER_CALLS)
                raise RuntimeError("the end of start_load_kv, with a load that the step needs")
        super().start_load_kv(forward_context, **kwargs)

    def shutdown(self) -> None:
        self._copies.wait(list(self._stores))
        self._collect()
        self.clear_connector_metadata()
        _end_for_good(self)


class FlakyPatientConnector(PatientConnector):
    """Raises once, while a step waits for what it loads."""

    scheduler_class = FlakyPatientScheduler
    worker_class = FlakyPatientWorker


def _check_metadata(metadata: Any, kind: type[KVConnectorMetadata]) -> None:
    """The scheduler's side plans every step while it lives."""
    if not isinstance(metadata, kind):
        raise CalledAgain(f"the worker's side gets {metadata!r} for a step, so the scheduler's broke down")
