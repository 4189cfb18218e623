import sys
from pathlib import Path

import pytest

# Not a package: the classes there must be importable by name.
sys.path.append(str(Path(__file__).parent / "support"))


@pytest.fixture
def a_vllm():
    """One can be imported, and it is set up; a test that needs one is skipped without."""
    pytest.importorskip("vllm")
    from kv_vllm.installed import vllm_version

    vllm_version()
