"""Which layers the files of a rank hold, for pipelines, whose stages have different layers.

The stages share a folder, since all of them get the same name for it. So a file beside those of a rank names its
layers: ``rank-0.layers`` and so on.
"""

import json
from pathlib import Path

from kv_api import ConfigError, OffloadingConfig
from kv_offload_file.epoch import have_on_disk
from kv_offload_file.slot_file import rows_path


def claim(folder: Path, config: OffloadingConfig) -> None:
    """Note the layers of this rank's files. If the files have other layers, they are emptied.

    The manager may have read the files before they are emptied. Then it knows chunks that aren't there: their
    loads fail, and they are forgotten.
    """
    rank = config.parallel.rank
    path = _layers_path(folder, rank)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if has_same_layers(folder, config):
            return
        rows_path(folder, rank).unlink(missing_ok=True)
        have_on_disk(folder)
        path.write_text(_layers(config), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"file_dir: {error.strerror}: {error.filename or path}") from error


def has_same_layers(folder: Path, config: OffloadingConfig) -> bool:
    """Whether a folder's files of this rank hold its layers, according to the note."""
    path = _layers_path(folder, config.parallel.rank)
    return path.exists() and path.read_text(encoding="utf-8") == _layers(config)


def _layers_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.layers"


def _layers(config: OffloadingConfig) -> str:
    return json.dumps([config.worker_kv_bytes_per_block, *(group.layer_names for group in config.groups)])
