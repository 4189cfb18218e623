"""Where the files of an engine are: in a folder whose name has a hash of what gives their bytes a meaning.

That is the model, the layout of its KV cache, and how it is spread over workers; and the engine, unless engines
share. Engines that share have homes within one folder.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Final

from kv_api import OffloadingConfig

_FORMAT: Final = 2


def home_folder(file_dir: str, config: OffloadingConfig, tag: str, engine: int | None = None) -> Path:
    """The home of an engine. If it shares, it is within the common folder, and named by the engine's number."""
    digest = hashlib.sha256(meaning_of(config, tag, engine).encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]+", "_", config.model.name)[-80:].strip("._") or "model"
    folder = Path(file_dir) / f"{name}-{digest}"
    return folder if engine is None else home_of(folder, engine)


def home_of(folder: Path, engine: int) -> Path:
    """The home of an engine among those that share a folder."""
    return folder / f"engine-{engine}"


def number_of(home: str) -> int | None:
    """The number of the engine whose home has this name. None: it is no engine's."""
    found = re.fullmatch(r"engine-(0|[1-9][0-9]*)", home)
    return None if found is None else int(found[1])


def meaning_of(config: OffloadingConfig, tag: str, engine: int | None = None) -> str:
    """A text of all that the meaning of an engine's bytes depends on; the same for engines that share."""
    return json.dumps(_meaning(config, tag, engine), indent=1, sort_keys=True)


def _meaning(config: OffloadingConfig, tag: str, engine: int | None) -> dict[str, Any]:
    """With a pipeline, only facts that are the same for all ranks: see ``layers``."""
    parallel = config.parallel
    is_alike = parallel.pp_size == 1
    return {
        "format": _FORMAT,
        "tag": tag,
        "model": config.model.name,
        "dtype": config.model.dtype,
        "bytes_per_block": config.worker_kv_bytes_per_block if is_alike else None,
        "blocks_per_chunk": config.cache.blocks_per_chunk,
        "tokens_per_hash": config.cache.tokens_per_hash,
        "groups": [
            [
                group.tokens_per_block,
                group.sliding_window_size_in_chunks,
                *(group.layer_names if is_alike else ()),
            ]
            for group in config.groups
        ],
        "layout": [config.kv_cache_layout, config.canonical_layout],
        "parallel": [
            parallel.world_size,
            parallel.tp_size,
            parallel.pp_size,
            parallel.pcp_size,
            parallel.dcp_size,
            # Left out if it has no effect, so that folders keep their names.
            *([parallel.cp_kv_cache_interleave_size] if parallel.dcp_size > 1 else []),
        ],
        "engine": parallel.data_parallel_index if engine is None else "any",
    }
