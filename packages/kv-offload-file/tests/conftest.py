import sys
from pathlib import Path

import pytest

# Not a package: the modules there must be importable by name.
sys.path.append(str(Path(__file__).parent / "support"))

from kv_offload_file_by_hand import by_hand
from kv_offload_file_rig import Rig


@pytest.fixture
def engines(tmp_path):
    """Makes engines over one folder, one after the other, and stops the last one."""
    made = []

    def make_one(chunks=6, **settings):
        made.append(Rig(tmp_path, chunks, **settings))
        return made[-1]

    yield make_one
    if made:
        made[-1].check()
        made[-1].stop()


@pytest.fixture
def rig():
    """An engine with four bays for stores (0 to 3) and four for loads, recounted at the end."""
    with by_hand() as made:
        yield made
