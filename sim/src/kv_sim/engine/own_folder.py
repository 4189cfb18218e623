"""``{folder}`` in a setting of a connector: a folder that no other world has, which is gone when its engine is.

All connectors of an engine get the same folder, and so do those of engines that share a store. It is for
connectors that keep files, and for those whose store outlives an engine: by its place the store of one world is
another one than that of the next.
"""

import shutil
import tempfile
import weakref
from dataclasses import replace
from typing import Any, Final

from kv_sim.subject import Subject

FOLDER: Final = "{folder}"


class Folder:
    """A folder that is made when somebody asks for it, and gone when nobody has this object any more."""

    def __init__(self) -> None:
        self._path = ""

    def path(self, prefix: str) -> str:
        """Where it is. Its name begins with the prefix of who asked first."""
        if not self._path:
            self._path = tempfile.mkdtemp(prefix=prefix)
            weakref.finalize(self, shutil.rmtree, self._path, ignore_errors=True)
        return self._path


def with_folder(subject: Subject, folder: Folder, prefix: str = "kv_sim-") -> Subject:
    """The subject as an engine tells its connectors of it. A folder is made if a setting asks for one."""
    return replace(subject, extra_config=filled(subject.extra_config, folder, prefix))


def filled(value: Any, folder: Folder, prefix: str) -> Any:
    """A setting, with the path of the folder."""
    if isinstance(value, dict):
        return {key: filled(item, folder, prefix) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, folder, prefix) for item in value]
    if isinstance(value, str) and FOLDER in value:
        return value.replace(FOLDER, folder.path(prefix))
    return value
