"""The one connector of a worker process, its *KV transfer group*: created once, used everywhere, shut down once.

Theory of operation. A worker calls ``ensure_kv_transfer_initialized`` when it knows its configuration, attention
layers ask ``has_kv_transfer_group`` and ``get_kv_transfer_group`` in every forward pass, and
``ensure_kv_transfer_shutdown`` ends it. Reading takes no lock. Making and ending hold one until they are done, so
that a second thread that wants the same waits for it. A connector's own constructor or ``shutdown`` may call
either function in the same thread. That is why the lock is reentrant, and why ``doing`` says what is going on.

Invariants (``check``): the connector is of one of the two families; outside the lock nothing is being created or
shut down.
"""

import threading  # noqa: TID251 - the worker's threads share one connector
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kv_api import (
    ConfigError,
    KVCacheConfig,
    KVConnectorBase,
    KVConnectorBase_V1,
    KVConnectorBaseType,
    KVConnectorRole,
    KVError,
    VllmConfig,
)
from kv_factory import fields
from kv_factory.connectors import KVConnectorFactory
from kv_factory.environment import USE_V1, read_switch


class KVTransferStateError(KVError, RuntimeError):
    """The process's connector was asked for when there is none, or was to be created while it is being created."""


class _TransferState:
    """The process's connector."""

    def __init__(self) -> None:
        self.connector: KVConnectorBaseType | None = None
        self.is_busy = False
        self.lock = threading.RLock()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Remember that a connector is created or shut down, for a call that comes back in the same thread."""
        self.is_busy = True
        try:
            yield
        finally:
            self.is_busy = False

    def check(self) -> None:
        """Recount: there is a connector or there is none, and nothing is half done."""
        with self.lock:
            held = self.connector
            families = (KVConnectorBase, KVConnectorBase_V1)
            assert held is None or isinstance(held, families), f"{held!r} is no connector"
            assert not self.is_busy, "outside the lock, and still busy"


_state = _TransferState()


def get_kv_transfer_group() -> KVConnectorBaseType:
    """The process's connector, which must have been initialised."""
    connector = _state.connector
    if connector is None:
        raise KVTransferStateError(
            "KV transfer is not initialised in this process: call ensure_kv_transfer_initialized with a "
            "configuration that has a kv_transfer_config, or ask has_kv_transfer_group first"
        )
    return connector


def has_kv_transfer_group() -> bool:
    """Whether the process has a connector."""
    return _state.connector is not None


def is_v1_kv_transfer_group(connector: KVConnectorBaseType | None = None) -> bool:
    """Whether ``connector``, or else the process's, is of the second family. False when there is none."""
    return isinstance(_state.connector if connector is None else connector, KVConnectorBase_V1)


def ensure_kv_transfer_initialized(
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig | None = None,
    *,
    broadcast_engine_id: Callable[[str], str] | None = None,
    allow_module_paths: bool = True,
) -> None:
    """Make the process's connector, unless there is one or this engine transfers no KV.

    ``VLLM_USE_V1`` chooses the family. A V1 connector gets the worker's role, and is created by
    ``create_connector`` if a ``kv_cache_config`` is given, else by ``create_connector_v1``. A V0 connector is
    created with this worker's rank and local rank. ``broadcast_engine_id`` gets this rank's ``engine_id`` and
    returns that of the first rank. It is written to the configuration, so that all workers of an engine have the
    same.
    """
    if has_kv_transfer_group():
        return
    transfer = fields.optional_transfer_config(vllm_config)
    if transfer is None or not transfer.is_kv_transfer_instance:
        return
    with _state.lock:
        if has_kv_transfer_group():
            return
        if _state.is_busy:
            raise KVTransferStateError(
                "ensure_kv_transfer_initialized was called while the connector is being created: "
                "a connector's constructor, or what it calls, must not ask for the process's connector"
            )
        with _state.busy():
            if broadcast_engine_id is not None:
                _share_engine_id(transfer, broadcast_engine_id)
            _state.connector = _create(vllm_config, kv_cache_config, allow_module_paths)


def ensure_kv_transfer_shutdown() -> None:
    """Shut down the process's connector, if there is one. It is gone afterwards, even when ``shutdown`` raises."""
    with _state.lock:
        connector = _state.connector
        if connector is None or _state.is_busy:
            return
        try:
            with _state.busy():
                if isinstance(connector, KVConnectorBase_V1):
                    connector.shutdown()
                else:
                    connector.close()
        finally:
            _state.connector = None


@contextmanager
def isolated_kv_transfer() -> Iterator[None]:
    """Begin without a connector; at the end shut down the new one, and restore the one from before."""
    with _state.lock:
        before, _state.connector = _state.connector, None
    try:
        yield
    finally:
        try:
            ensure_kv_transfer_shutdown()
        finally:
            with _state.lock:
                _state.connector = before


def _create(config: VllmConfig, kv_cache_config: KVCacheConfig | None, allow: bool) -> KVConnectorBaseType:
    factory, worker = KVConnectorFactory, KVConnectorRole.WORKER
    if not read_switch(USE_V1).on:
        rank, local_rank = _ranks(getattr(config, "parallel_config", None))
        return factory.create_connector_v0(rank, local_rank, config, allow_module_paths=allow)
    if kv_cache_config is not None:
        return factory.create_connector(config, worker, kv_cache_config, allow_module_paths=allow)
    return factory.create_connector_v1(config, worker, allow_module_paths=allow)


def _ranks(parallel: Any) -> tuple[int, int]:
    """This worker's rank, and its rank on its machine.

    The rank on its machine is ``local_rank``, which few configurations have, or follows from the number of
    workers on a machine (``local_world_size``). If neither is known, there is one machine, and both ranks are the
    same.
    """
    rank = getattr(parallel, "rank", None)
    if rank is None:
        raise ConfigError("parallel_config.rank: not set, and a V0 connector is created with it")
    local_rank = getattr(parallel, "local_rank", None)
    if local_rank is None:
        workers = getattr(parallel, "local_world_size", None)
        local_rank = rank % workers if workers else rank
    return rank, local_rank


def _share_engine_id(transfer: Any, broadcast: Callable[[str], str]) -> None:
    transfer.engine_id = fields.checked_string("what broadcast_engine_id returned", broadcast(transfer.engine_id))
