"""Describes a world, an action, a request or a copy in a line, for logs and traces."""

import json
from collections.abc import Mapping
from typing import Any, Final

from kv_api import Direction
from kv_sim.actions import Action, Kind
from kv_sim.config import Stranger, WorldConfig
from kv_sim.engine.request import SimRequest
from kv_sim.watching.brief import brief

MOST_PAGES: Final = 5
STRANGERS: Final[Mapping[Stranger, str]] = {
    "model": "another model",
    "path": "another model, whose path has the same end",
    "dtype": "numbers of another type",
    "blocks": "blocks of another size",
    "ranks": "another number of ranks",
}
PLAIN: Final = ("request", "mode")
"""Arguments that are shown without their name."""
MOST_SENT: Final = 24
"""Characters of what a client sends."""


def describe_state(request: SimRequest) -> str:
    """The state of a request."""
    turn = f", turn {request.turn + 1}" if request.turn else ""
    return request.status.value + turn + (" and held" if request.is_held else "")


def describe_world(config: WorldConfig) -> str:
    """The sizes of a world in a line."""
    groups = ", ".join(
        (f"{g.kind} {g.window}" if g.window else g.kind)
        + (f" in blocks of {config.block_size // g.parts}" if g.parts > 1 else "")
        for g in config.groups
    )
    parts = [
        f"{config.num_blocks} blocks of {config.block_size}",
        f"groups: {groups}",
        f"tp {config.tp_size} pp {config.pp_size}" + _stages(config),
        f"run-ahead {config.run_ahead}" + (" asynchronous" if config.async_scheduling else ""),
        f"runner V{config.runner}" + (" zeroing new blocks" if config.zero_new_blocks else ""),
        f"at most {config.max_running} running, {config.max_step_tokens} tokens a step",
        f"{config.host_slots} host slots",
        f"{config.role}, failed loads: {config.failure_policy}",
    ]
    if config.engines > 1:
        other = config.at(1)
        parts.append(f"{config.engines} engines, the second {other.role} with {other.num_blocks} blocks")
        if config.stranger != "none":
            parts[-1] += f"{_of_size(config, other)}, a stranger: {STRANGERS[config.stranger]}"
    if config.is_fine:
        parts.append(f"{config.hashes_per_block} hashes a block")
    if config.images:
        parts.append("images")
    if config.pauses:
        parts.append("pauses")
    if config.spec_tokens:
        by = "" if config.drafter == "text" else f" by a draft model ({config.drafter})"
        parts.append(f"{config.spec_tokens} draft tokens{by}")
    return "; ".join(parts)


def _of_size(config: WorldConfig, other: WorldConfig) -> str:
    return f" of {other.block_size}" if other.block_size != config.block_size else ""


def _stages(config: WorldConfig) -> str:
    """How many layers of each group the stages have, if they differ."""
    if config.stages == "alike":
        return ""
    stages = (config.layers_of(rank) for rank in range(0, config.world_size, config.tp_size))
    return " of " + " | ".join(" + ".join(map(str, layers)) for layers in stages) + " layers"


def describe(action: Action) -> str:
    """An action in a line."""
    args = dict(action.args)
    number = args.pop("engine", None)
    return _describe(action.kind, args) + ("" if number is None else f", at engine {number}")


def _describe(kind: Kind, args: dict[str, Any]) -> str:
    if kind is Kind.ADD:
        spec = args["spec"]
        extras = [f"{name} {spec[name]}" for name in ("salt", "adapter") if spec.get(name) is not None]
        if spec.get("image") is not None:
            extras.append(f"image {spec['image']} at token {spec.get('image_at', 0)}")
        if spec.get("skip_reading_prefix_cache"):
            extras.append("skips reading caches")
        prompt = f"{spec['request_id']}: {spec['shared_tokens']} tokens of conversation {spec['conversation']}"
        whose = f"{spec['own_of']}'s" if spec.get("own_of") else "own"
        own = f" + {spec['own_tokens']} {whose}" if spec["own_tokens"] else ""
        samples = f"samples {spec['output_tokens']} of at most {spec['max_tokens']}"
        if spec.get("kv_transfer_params") is not None:
            extras.append(f"its client sends {json.dumps(spec['kv_transfer_params']):.{MOST_SENT}}")
        if spec.get("turns") is not None:
            turns = [f"{turn['tokens']} more, samples {turn['output_tokens']}" for turn in spec["turns"]]
            extras.append("; ".join(["a session", *turns]))
        return f"add      {', '.join([prompt + own, samples, *extras])}"
    if kind is Kind.RESET:
        what = [word for word in ("running", "connector") if args[word]]
        return "reset    " + " and ".join(["the prefix cache", *what])
    if kind is Kind.RESTART:
        return f"restart  rank {args['rank']}" + (", its host memory is lost" if args["memory"] else "")
    said = (f"{'' if k in PLAIN else k + ' '}{brief(v)}" for k, v in args.items())
    return f"{kind.value:<8} " + ", ".join(said)


def describe_pairs(direction: Direction, pairs: tuple[tuple[int, int], ...]) -> str:
    """Where the pages of a copy go."""
    is_store = direction is Direction.STORE
    texts = [
        f"block {block} → host {slot}" if is_store else f"host {slot} → block {block}"
        for block, slot in pairs[:MOST_PAGES]
    ]
    return ", ".join(texts) + (f", … {len(pairs)} in all" if len(pairs) > MOST_PAGES else "")
