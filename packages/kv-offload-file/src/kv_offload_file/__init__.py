"""Files on a disk as an offloading medium: chunks outlive the engine, and are not taken on trust.

Start at ``FileOffloadingSpec``, which makes the manager for the scheduler and the worker for each worker process.

======================== ==================================================================================
``spec``                 from a configuration (``options``) to both sides
``manager``              the scheduler's side: host memory's, which begins with what it finds in the file
``restore``              what it finds: the chunks that all ranks have
``folder``               where the files of an engine are; ``layers``: which layers they hold, of a pipeline
``home``, ``epoch``      whose they are now, and since when they count
``load_store_spec``      what the manager tells the worker; ``stats`` and ``info``: what both count and publish
``worker``               the worker's side: host memory's, which knows whose chunks it moves
``engine``               what moves them, in two moves, by way of ``bays`` of ``staging`` memory
``lanes``                which chunks go next, each way; ``telling``: which of its problems are logged
``slot_file``, ``label`` the files of one rank: the bytes, and what each slot says of itself
``sharing/``             engines of one machine that read each other's chunks
======================== ==================================================================================

What needs numpy is imported when it is first asked for.
"""

from kv_offload_file.folder import home_folder
from kv_offload_file.info import FileOffloadingInfo
from kv_offload_file.load_store_spec import FileLoadStoreSpec
from kv_offload_file.manager import FileOffloadingManager
from kv_offload_file.options import FileOptions
from kv_offload_file.spec import FileOffloadingSpec
from kv_offload_file.stats import METRICS, FileOffloadingStats

__all__ = [
    "METRICS",
    "FileLoadStoreSpec",
    "FileOffloadingInfo",
    "FileOffloadingManager",
    "FileOffloadingSpec",
    "FileOffloadingStats",
    "FileOptions",
    "home_folder",
]
