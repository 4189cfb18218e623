"""The functions for notebooks: ``replay`` and ``size`` take a trace and return numbers."""

from collections.abc import Callable, Sequence
from pathlib import Path

from kv_api import ConfigError
from kv_offload import StoreWhen
from kv_sim.replay.caches.outcome import Setup
from kv_sim.replay.caches.policies import ALL_POLICIES, USUAL_POLICY, parse_policies
from kv_sim.replay.columns import Columns
from kv_sim.replay.crew import Crew
from kv_sim.replay.hit_rates.results import CacheReplay, results_of
from kv_sim.replay.hit_rates.setups import replay_all
from kv_sim.replay.kv_bytes.models import find_model
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import EngineField, TraceOptions
from kv_sim.replay.servers.fleet import Fleet, RoutedTrace
from kv_sim.replay.servers.routing import USUAL, find_routing
from kv_sim.replay.sizing.around import Around, Disk
from kv_sim.replay.sizing.capacities import Sizing, size_trace, usual_capacities
from kv_sim.replay.units import Footprint, parse_capacity

__all__ = ["CacheReplay", "Columns", "Sizing", "TraceOptions", "open_trace", "replay", "size"]

Capacity = int | str
"""Blocks, or a size such as ``"64GiB"`` or ``"10Mtokens"``."""


def replay(
    trace: Columns | str | Path,
    policy: str = USUAL_POLICY,
    capacity: Capacity = 0,
    *,
    gpu_capacity: Capacity | None = None,
    model: str | None = None,
    bytes_per_token: int | None = None,
    store_threshold: int = 0,
    disk_capacity: Capacity = 0,
    disk_store_threshold: int = 0,
    store_when: str = StoreWhen.COMPUTED.value,
    servers: int = 1,
    routing: str = USUAL.value,
    disk_shared: bool = False,
) -> CacheReplay:
    """Replay a trace through the real manager with one policy at one capacity, maybe with a disk behind it.

    With several ``servers`` each has this capacity, and the result counts all of them; with ``disk_shared`` each
    also loads what the others have on their disks. The bytes of a token and the size of the GPU's prefix cache
    are taken from the trace, unless they are given here. With ``store_when`` ``evicted`` blocks are stored when
    the GPU's prefix cache is about to evict them, instead of when they are computed.
    """
    fleet = Fleet(servers, find_routing(routing, "routing"), disk_shared)
    if disk_shared and not disk_capacity:
        raise ConfigError("disk_shared is for disk_capacity, which isn't given")
    routed = _routed(trace, fleet, _overruled(model or bytes_per_token, gpu_capacity))
    columns = routed.columns
    footprint = _footprint(columns, model, bytes_per_token)
    setup = Setup(
        policy,
        _blocks(capacity, footprint),
        _gpu_blocks(gpu_capacity, columns, footprint),
        store_threshold,
        disk=_blocks(disk_capacity, footprint),
        disk_store_threshold=disk_store_threshold,
        store_when=_store_when(store_when),
    )
    [run] = results_of(routed, replay_all(routed, [setup]), footprint).runs
    return run


def size(
    trace: Columns | str | Path,
    policies: Sequence[str] | str = ALL_POLICIES,
    capacities: Sequence[Capacity] | Capacity | None = None,
    *,
    points: int = 20,
    gpu_capacity: Capacity | None = None,
    budget: Capacity | None = None,
    model: str | None = None,
    bytes_per_token: int | None = None,
    jobs: int = 1,
    progress: Callable[[float], None] = lambda share: None,
    disk: str | None = None,
    host_capacity: Capacity = 0,
    store_when: str = StoreWhen.COMPUTED.value,
    servers: int = 1,
    routing: str = USUAL.value,
    disk_shared: bool = False,
) -> Sizing:
    """Sweep capacities and policies, and recommend one of each. Defaults are those of ``replay``.

    Text that names policies or capacities is as on the command line: one, or several with commas between them.
    With ``disk``, a folder on the server, files in it are sized, behind host memory of ``host_capacity``.
    """
    fleet = Fleet(servers, find_routing(routing, "routing"), disk_shared)
    if disk_shared and disk is None:
        raise ConfigError("disk_shared is for disk, which isn't given")
    routed = _routed(trace, fleet, _overruled(model or bytes_per_token, gpu_capacity))
    columns = routed.columns
    footprint = _footprint(columns, model, bytes_per_token)
    if capacities is None:
        sizes = usual_capacities(routed.most_blocks, points)
    else:
        sizes = [_blocks(capacity, footprint) for capacity in _each(capacities)]
    return size_trace(
        routed,
        parse_policies(policies) if isinstance(policies, str) else policies,
        sizes,
        footprint,
        Around(
            gpu_blocks=_gpu_blocks(gpu_capacity, columns, footprint),
            disk=None if disk is None else Disk(disk, _blocks(host_capacity, footprint)),
            store_when=_store_when(store_when),
        ),
        budget_blocks=None if budget is None else _blocks(budget, footprint),
        crew=Crew(jobs, progress),
    )


def _routed(trace: Columns | str | Path, fleet: Fleet, overruled: frozenset[EngineField]) -> RoutedTrace:
    if not isinstance(trace, Columns):
        trace = open_trace(trace, TraceOptions(sessions=fleet.needs_sessions, overruled=overruled))
    return RoutedTrace(trace, fleet)


def _overruled(of_a_token: object, gpu_capacity: object) -> frozenset[EngineField]:
    """What the caller gives instead of what the trace says."""
    said = {EngineField.BYTES_PER_TOKEN: of_a_token, EngineField.GPU_TOKENS: gpu_capacity}
    return frozenset({EngineField.BEHIND, *(field for field, value in said.items() if value is not None)})


def _footprint(columns: Columns, model: str | None, bytes_per_token: int | None) -> Footprint:
    if model is not None and bytes_per_token is None:
        bytes_per_token = find_model(model).bytes_per_token("bf16")
    if bytes_per_token is None and columns.engine is not None:
        bytes_per_token = columns.engine.bytes_per_token
    return Footprint(columns.block_tokens, bytes_per_token)


def _gpu_blocks(capacity: Capacity | None, columns: Columns, footprint: Footprint) -> int:
    if capacity is None:
        return 0 if columns.engine is None else columns.engine.gpu_tokens // columns.block_tokens
    return _blocks(capacity, footprint)


def _store_when(text: str) -> StoreWhen:
    if text not in list(StoreWhen):
        raise ConfigError(f"store_when: expected one of {', '.join(StoreWhen)}, got {text!r}")
    return StoreWhen(text)


def _each(capacities: Sequence[Capacity] | Capacity) -> Sequence[Capacity]:
    if isinstance(capacities, str):
        return capacities.split(",")
    return [capacities] if isinstance(capacities, int) else capacities


def _blocks(capacity: Capacity, footprint: Footprint) -> int:
    return capacity if isinstance(capacity, int) else parse_capacity(capacity, footprint, "capacity")
