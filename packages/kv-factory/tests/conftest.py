"""Every test gets registries of its own, and every registry is recounted after it."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kv_api
import kv_factory
from kv_factory import transfer_state


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("VLLM_USE_V1", raising=False)
    monkeypatch.delenv("KV_FACTORY_ALLOW_MODULE_PATHS", raising=False)
    with kv_factory.isolated(connectors=(), specs=()):
        yield
        kv_factory.KVConnectorFactory._registry.check()
        kv_factory.OffloadingSpecFactory._registry.check()
        transfer_state._state.check()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on ``sys.path``; what was imported from it is forgotten."""
    place = tmp_path / "importable"
    place.mkdir()
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(place))
    yield place
    for name in sorted(set(sys.modules) - before):
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(place)):
            del sys.modules[name]


@pytest.fixture
def zoo(folder: Path) -> str:
    """The name of a module that has the classes of zoo.py, not imported yet."""
    shutil.copy(Path(__file__).with_name("zoo.py"), folder / "kvf_zoo.py")
    return "kvf_zoo"


@pytest.fixture
def register(zoo: str) -> Callable[..., None]:
    """Register classes of the zoo under their own names."""

    def register(*names: str) -> None:
        for name in names:
            kv_factory.KVConnectorFactory.register_connector(name, zoo, name)

    return register


@pytest.fixture
def engine() -> Callable[..., Any]:
    """Make an engine's configuration for a connector."""

    def engine(name: str | None, *, hma_off: bool | None = True, **transfer: Any) -> Any:
        return SimpleNamespace(
            kv_transfer_config=kv_api.KVTransferConfig(kv_connector=name, kv_role="kv_both", **transfer),
            scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=hma_off),
            parallel_config=SimpleNamespace(rank=5),
        )

    return engine
