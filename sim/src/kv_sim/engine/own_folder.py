"""``{folder}`` in a setting of a connector: a folder that no other world has, which is gone when its engine is.

All connectors of an engine get the same folder. It is for connectors that keep files, and for those whose store
outlives an engine: by its place the store of one world is another one than that of the next.
"""

import shutil
import tempfile
import weakref
from dataclasses import replace
from typing import Any, Final

from kv_sim.subject import Subject

FOLDER: Final = "{folder}"


def with_own_folder(subject: Subject, engine: object) -> Subject:
    """The subject as the engine tells its connectors of it. A folder is made if a setting asks for one."""
    return replace(subject, extra_config=_filled(subject.extra_config, engine, []))


def _filled(value: Any, engine: object, made: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, engine, made) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, engine, made) for item in value]
    if isinstance(value, str) and FOLDER in value:
        if not made:
            made.append(tempfile.mkdtemp(prefix="kv_sim-"))
            weakref.finalize(engine, shutil.rmtree, made[0], ignore_errors=True)
        return value.replace(FOLDER, made[0])
    return value
