"""Files on a disk as an offloading medium: chunks outlive the engine, and are checked when they are read.

Start at ``FileOffloadingSpec``, which makes the manager for the scheduler and the worker for each worker process.
Both extend those of host memory (``kv_offload_cpu``).

=================== =========================================================================================
``spec``            makes both sides from a configuration (``options``)
``folder``          where an engine's files are; ``layers``: which layers of a pipeline they hold
``home``            the lock of the engine that manages them; ``epoch``: which chunks are valid
**deciding**        the scheduler's side
``manager``         begins with the chunks that it finds in the files; ``restore``: those that all ranks have
**copying**         the worker's side
``worker``          tells the copy engine which chunks a job moves
``engine``          moves each chunk in two steps, by way of a bay of memory
``slots``           reads slots into bays, and writes them from there; ``staging``: how stores and loads share bays
``lanes``           which chunk is next in each direction
``slot_file``       the files of one rank; ``label``: which chunk each slot holds
``telling``         which problems are logged
**between them**    what each tells the other
``load_store_spec`` in which slots a job finds its chunks
``stats``           counts; ``info``: facts that are published once
**several engines** on one machine
``sharing/``        they read each other's chunks
=================== =========================================================================================

Classes that need numpy are imported at their first use.
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
