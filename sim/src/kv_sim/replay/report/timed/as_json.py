"""What ``--json`` writes for engine fidelity."""

from collections.abc import Mapping
from dataclasses import asdict
from enum import Enum
from typing import Any

from kv_sim.replay.sizing.transfer_config import decode_config, prefill_config
from kv_sim.replay.timed.replay import EngineReplay
from kv_sim.replay.timed.runs.answers import Answers
from kv_sim.replay.timed.server.settings import EngineSettings
from kv_sim.replay.timed.sweep import EngineSweep, SweepRun


def timed_as_json(found: EngineReplay | EngineSweep) -> Mapping[str, Any]:
    """The results of ``replay`` and ``size`` with ``--fidelity engine``."""
    return _sweep(found) if isinstance(found, EngineSweep) else _replay(found)


def answers_as_json(answers: Answers) -> Mapping[str, Any]:
    """The answers of one server or fleet, with the ratios."""
    ratios = (
        "gpu_block_ratio",
        "cpu_block_ratio",
        "disk_block_ratio",
        "gpu_token_ratio",
        "cpu_token_ratio",
        "disk_token_ratio",
        "pulled_token_ratio",
        "kept_token_ratio",
        "output_tokens_per_second",
        "tokens_per_second",
    )
    return asdict(answers) | {name: getattr(answers, name) for name in ratios}


def _replay(found: EngineReplay) -> Mapping[str, Any]:
    if found.settings.prefill_servers:
        return _trace_and_settings(found) | _split(found)
    without_disk = found.without_disk
    return _trace_and_settings(found) | {
        **_configs(found.settings),
        "with_connector": answers_as_json(found.with_connector),
        "without_disk": None if without_disk is None else answers_as_json(without_disk),
        "without": answers_as_json(found.without),
    }


def _split(found: EngineReplay) -> dict[str, Any]:
    return _configs(found.settings) | {
        "split": answers_as_json(found.with_connector),
        "doing_both": answers_as_json(found.without),
    }


def _configs(settings: EngineSettings) -> dict[str, Any]:
    """The configuration of a server; if some prefill for others, those of both kinds."""
    transfer = settings.transfer_config()
    if not settings.prefill_servers:
        return {"kv_transfer_config": transfer}
    configs = {"to_prefill": prefill_config(transfer), "to_decode": decode_config()}
    return {"kv_transfer_configs": configs}


def _sweep(found: EngineSweep) -> Mapping[str, Any]:
    chosen = found.recommended
    return _trace_and_settings(found) | {
        "goals": [asdict(goal) for goal in found.goals],
        "runs": [_run(found, run) for run in found.runs],
        "without": {**answers_as_json(found.without), "meets_goals": found.is_met(found.without)},
        "recommended": None if chosen is None else _run(found, chosen),
    }


def _run(found: EngineSweep, run: SweepRun) -> Mapping[str, Any]:
    return {
        "policy": run.settings.eviction_policy,
        "cpu_bytes": run.settings.cpu_bytes_to_use,
        "disk_bytes": run.settings.disk_bytes_to_use,
        "prefill_servers": run.settings.prefill_servers or 0,
        **_configs(run.settings),
        "meets_goals": found.is_met(run.answers),
        "answers": answers_as_json(run.answers),
    }


def _trace_and_settings(found: EngineReplay | EngineSweep) -> dict[str, Any]:
    return {
        "fidelity": "engine",
        "trace": found.trace,
        "notes": list(found.notes),
        "load": None if found.load is None else asdict(found.load),
        "settings": _plain(asdict(found.settings)),
        "sizes": _plain(asdict(found.sizes)),
    }


def _plain(value: Any) -> Any:
    """Enums by value, at any depth."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.value if isinstance(value, Enum) else value
