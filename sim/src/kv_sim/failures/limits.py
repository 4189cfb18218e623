"""How large the numbers of a schedule file may be: larger ones would take too much time or memory.

Drawn worlds are small on purpose. A recorded one is as large as its server was, so the limits are above any
server's. Numbers without a limit here cost nothing: they are only compared with others.
"""

from collections.abc import Mapping
from typing import Any, Final

from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.strict import Bad

MOST_OF_A_WORLD: Final[Mapping[str, int]] = {
    "num_blocks": 1 << 20,
    "block_size": 1 << 12,
    "layers": 1 << 8,
    "tp_size": 1 << 6,
    "pp_size": 1 << 6,
    "run_ahead": 1 << 6,
    "spec_tokens": 1 << 6,
    "host_slots": 1 << 24,
}
MOST_BLOCK_TOKENS: Final = 1 << 24
"""Of all GPU blocks together."""
MOST_WORDS: Final = 1 << 30
"""Of the memory of all ranks: eight gibibytes."""
MOST_KEEPS_FROM: Final = 100
MOST_TOKENS: Final = 1 << 22
"""Of a request, with all of its turns: the tokens are computed when it arrives."""


def check_most(where: str, value: int, most: int) -> None:
    """Check that a number isn't too large."""
    if value > most:
        raise Bad(f"{where}: at most {most}, got {value}")


def check_world(config: WorldConfig) -> None:
    """Check that a world fits into memory, and that a history in it ends."""
    for name, most in MOST_OF_A_WORLD.items():
        check_most(f"world.{name}", getattr(config, name), most)
    check_most(
        "world: tokens of num_blocks of block_size", config.num_blocks * config.block_size, MOST_BLOCK_TOKENS
    )
    words = (config.num_blocks + config.host_slots) * config.block_size * config.most_layers * config.world_size
    check_most("world: words of num_blocks and host_slots in all layers and ranks", words, MOST_WORDS)


def check_tokens(where: str, spec: Mapping[str, Any]) -> None:
    """Check that a request isn't too long; the error names the first number that makes it so."""
    total = 0
    asked = [(where, spec), *((f"{where}.turns[{i}]", turn) for i, turn in enumerate(spec.get("turns") or ()))]
    for place, values in asked:
        for name in ("shared_tokens", "own_tokens", "tokens", "output_tokens"):
            before, total = total, total + values.get(name, 0)
            if total > MOST_TOKENS:
                beside = f" beside the {before} before it" if before else ""
                raise Bad(f"{place}.{name}: at most {MOST_TOKENS - before}{beside}, got {values[name]}")


def check_room(where: str, spec: RequestSpec, config: WorldConfig) -> None:
    """Check that the world has room for a request: an engine refuses longer ones."""
    most, total = config.max_model_len, spec.total_tokens
    if total > most:
        sizes = {name: getattr(config, name) for name in ("num_blocks", "block_size", "hashes_per_block")}
        sizes["groups"] = len(config.groups)
        raise Bad(
            f"{where}: request {spec.request_id!r} comes to {total} tokens, and the world has room for {most}: "
            + ", ".join(f"{name} {value}" for name, value in sizes.items())
        )
