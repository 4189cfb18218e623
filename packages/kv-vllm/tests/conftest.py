import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

# Not a package: the classes there must be importable by name.
sys.path.append(str(Path(__file__).parent / "support"))


@pytest.fixture
def a_vllm():
    """One can be imported, and it is set up; a test that needs one is skipped without."""
    pytest.importorskip("vllm")
    from kv_vllm.installed import vllm_version

    vllm_version()


@pytest.fixture
def in_process(monkeypatch):
    """Engines are in this process, where a test can look at them."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


@pytest.fixture
def base():
    """vLLM's module of the base classes."""
    return pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.base")


@pytest.fixture
def cache():
    """Blocks of one group."""
    specs = pytest.importorskip("vllm.v1.kv_cache_interface")
    torch = pytest.importorskip("torch")
    size = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
    spec = specs.SlidingWindowSpec(**size, sliding_window=40)
    return SimpleNamespace(
        num_blocks=8,
        kv_cache_groups=[SimpleNamespace(layer_names=["a"], kv_cache_spec=spec)],
        kv_cache_tensors=[SimpleNamespace(size=8 * spec.page_size_bytes, shared_by=["a"])],
    )
