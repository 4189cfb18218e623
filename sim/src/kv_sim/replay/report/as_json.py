"""What ``--json`` writes: all results by name, with the unit at the end of a name."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kv_sim.replay.caches.tally import AGE_EDGES_SECONDS
from kv_sim.replay.hit_rates.results import Replays
from kv_sim.replay.hit_rates.stream import StreamReplays
from kv_sim.replay.sizing.capacities import Sizing


def replays_as_json(found: Replays | StreamReplays, model: str | None) -> Mapping[str, Any]:
    """The results of ``replay``."""
    data = asdict(found) | {"fidelity": "cache", "model": model}
    if isinstance(found, Replays):
        data["age_edges_seconds"] = AGE_EDGES_SECONDS
    for run, values in zip(found.runs, data["runs"], strict=True):
        values["capacity_bytes"] = run.capacity_bytes
        values["loaded_bytes"], values["stored_bytes"] = run.loaded_bytes, run.stored_bytes
        values["disk_bytes"] = run.disk_bytes
    return data


def sizing_as_json(found: Sizing, model: str | None) -> Mapping[str, Any]:
    """The results of ``size``."""
    capacities_bytes = [found.footprint.bytes_of(size) for size in found.capacities]
    return asdict(found) | {
        "model": model,
        "capacities_bytes": capacities_bytes,
        "token_ratio_per_block": found.gains(),
        "kv_transfer_config": found.config(),
    }
