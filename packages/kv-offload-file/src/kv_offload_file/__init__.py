"""Files on a disk as an offloading medium: chunks outlive the engine, and are checked when they are read.

Start at ``FileOffloadingSpec``, which makes the manager for the scheduler and the worker for each worker process.
Both are those of host memory (``kv_offload_cpu``), with what files need in addition.

=================== =========================================================================================
``spec``            from a configuration (``options``) to both sides
``folder``          where an engine's files are; ``layers``: which layers of a pipeline they hold
``home``            whose files they are now; ``epoch``: since when their chunks count
**deciding**        the scheduler's side
``manager``         begins with the chunks that it finds in the files; ``restore``: those that all ranks have
**copying**         the worker's side
``worker``          tells the engine whose chunks a job moves
``engine``          moves each chunk in two steps, by way of a bay of memory
``bays``            the bays; ``staging``: how stores and loads share them
``lanes``           which chunk goes next in each direction
``slot_file``       the files of one rank; ``label``: what each slot says of itself
``telling``         which problems are logged
**between them**    what one tells the other
``load_store_spec`` in which slots a job finds its chunks
``stats``           what is counted; ``info``: what is published once
**several engines** on one machine
``sharing/``        they read each other's chunks
=================== =========================================================================================

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
