import pytest
from kv_offload_cpu_nvrtc import Compiler

from kv_offload_cpu.copy.cuda import nvrtc


@pytest.fixture
def compiler(monkeypatch):
    """Lets a compiler be used, by default one that knows the H200. Nothing was compiled before."""

    def use(compiler):
        monkeypatch.setattr(nvrtc, "import_module", lambda name: {"cuda.bindings.nvrtc": compiler}[name])
        return compiler

    use(Compiler())
    nvrtc.compile_source.cache_clear()
    yield use
    nvrtc.compile_source.cache_clear()


@pytest.fixture
def on_driver(compiler, monkeypatch):
    """Lets a driver be used."""

    def use(driver):
        monkeypatch.setattr(nvrtc, "load_bindings", lambda purpose: driver)
        return driver

    return use
