"""``{folder}`` in a connector's settings: a folder of this world alone, removed with its engine.

All connectors of an engine get the same folder, and so do those of engines that share a store. It is for
connectors that keep files, and for those whose store outlives an engine: its path tells the stores of worlds
apart.
"""

import shutil
import tempfile
import weakref
from dataclasses import replace
from typing import Any, Final

from kv_sim.subject import Subject

FOLDER: Final = "{folder}"


class Folder:
    """A folder that is made when its path is first asked for, and removed with this object."""

    def __init__(self) -> None:
        self._path = ""

    def path(self, prefix: str) -> str:
        """Its path. The folder's name begins with the prefix of the first call."""
        if not self._path:
            self._path = tempfile.mkdtemp(prefix=prefix)
            weakref.finalize(self, shutil.rmtree, self._path, ignore_errors=True)
        return self._path


def with_folder(subject: Subject, folder: Folder, prefix: str = "kv_sim-") -> Subject:
    """The subject with ``{folder}`` filled in. The folder is made if a setting has it."""
    return replace(subject, extra_config=filled(subject.extra_config, folder, prefix))


def filled(value: Any, folder: Folder, prefix: str) -> Any:
    """A setting, with the folder's path filled in."""
    if isinstance(value, dict):
        return {key: filled(item, folder, prefix) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, folder, prefix) for item in value]
    if isinstance(value, str) and FOLDER in value:
        return value.replace(FOLDER, folder.path(prefix))
    return value
