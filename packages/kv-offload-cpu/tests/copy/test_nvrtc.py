"""Kernels by NVRTC: for which device they are compiled, and what is refused how.

Compiler and driver are functions of Python here. What the kernels do ``nox -s kernel`` shows, and on a GPU
``nox -s gpu``.
"""

from types import SimpleNamespace

import pytest
from kv_offload_cpu_nvrtc import Compiler, KernelDriver

from kv_api import ConfigError
from kv_offload_cpu.copy.cuda import nvrtc
from kv_offload_cpu.copy.cuda.bulk_call import LANES, SOURCE, BulkCall
from kv_offload_cpu.copy.cuda.nvrtc import WrongDeviceError, compile_source
from kv_offload_cpu.copy.cuda.plain_call import SOURCE as PLAIN
from kv_offload_cpu.copy.cuda.plain_call import WORDS, PlainCall

H200 = (9, 0)


@pytest.mark.parametrize(
    ("source", "capability", "known", "target", "code"),
    [
        (SOURCE, H200, (80, 90, 100), "sm_90", b"code"),
        (SOURCE, (10, 0), (80, 90, 100), "sm_100", b"code"),
        (SOURCE, (10, 3), (80, 90, 100, 101, 120), "compute_90", b"ptx"),
        (SOURCE, (12, 1), (80, 90), "compute_90", b"ptx"),
        (PLAIN, (8, 0), (75, 80, 90), "sm_80", b"code"),
        (PLAIN, (12, 1), (75, 80, 90), "compute_75", b"ptx"),
        (PLAIN, (7, 0), (90, 75, 80), "compute_75", b"ptx"),  # which the driver won't translate
    ],
)
def test_a_device_gets_code_of_its_own_or_what_its_driver_can_translate(
    compiler, source, capability, known, target, code
):
    used = compiler(Compiler(known))
    assert compile_source(source, capability) == (code, "fine")
    assert used.options[0] == f"-arch={target}"
    assert used.compiled == [source.file]


@pytest.mark.parametrize(
    ("source", "defined"), [(SOURCE, {"-DSTEP_BYTES=4096", f"-DLANES={LANES}"}), (PLAIN, {f"-DWORDS={WORDS}"})]
)
def test_a_source_says_what_the_compiler_is_told(compiler, source, defined):
    used = compiler(Compiler())
    compile_source(source, H200)
    assert {option for option in used.options if option.startswith("-D")} == defined


def test_nothing_is_compiled_twice(compiler):
    used = compiler(Compiler())
    first, second = compile_source(SOURCE, H200), compile_source(PLAIN, H200)
    assert compile_source(SOURCE, H200) is first
    assert compile_source(PLAIN, H200) is second
    assert used.compiled == ["bulk_kernel.cu", "plain_kernel.cu"]


def test_an_older_device_is_told_what_it_lacks(compiler):
    with pytest.raises(WrongDeviceError) as caught:
        compile_source(SOURCE, (8, 9))
    assert str(caught.value) == (
        "copy_engine: the device has compute capability 8.9, and a kernel of bulk copies needs 9.0; "
        "use 'cuda-gather'"
    )


def test_what_does_not_compile_is_refused_in_the_words_of_the_compiler(compiler):
    compiler(Compiler(result=6, log=b"error: no such instruction\n\0"))
    with pytest.raises(ConfigError) as caught:
        compile_source(SOURCE, H200)
    assert str(caught.value) == ("copy_engine: NVRTC can't compile for sm_90: error 6: error: no such instruction")


@pytest.mark.parametrize(
    ("source", "what", "instead"),
    [
        (SOURCE, "kernel of bulk copies", "use 'cuda-gather'"),
        (PLAIN, "kernel for buffers", "use 'caller' as copy_submission"),
    ],
)
@pytest.mark.parametrize("lacking", ["module", "library"])
def test_without_the_compiler_what_has_it_is_named(compiler, monkeypatch, lacking, source, what, instead):
    def asked(*arguments):
        raise ImportError("not here") if lacking == "module" else RuntimeError("not here")

    given = SimpleNamespace(nvrtcGetSupportedArchs=asked)
    monkeypatch.setattr(nvrtc, "import_module", asked if lacking == "module" else lambda name: given)
    with pytest.raises(ConfigError) as caught:
        compile_source(source, H200)
    assert str(caught.value) == (
        f"copy_engine: a {what} needs NVRTC, which can't be used (not here); install that of "
        f"cuda-bindings' CUDA (nvidia-cuda-nvrtc, or nvidia-cuda-nvrtc-cu12), or {instead}"
    )


CALLS = ("cuCtxGetDevice", "cuDeviceGetAttribute", "cuModuleLoadData", "cuModuleGetFunction")


@pytest.mark.parametrize(
    ("call", "failing", "said"),
    [
        *((BulkCall, name, "of bulk copies: {}; use 'cuda-gather'") for name in (*CALLS, "cuFuncSetAttribute")),
        *((PlainCall, name, "for buffers: {}; use 'caller' as copy_submission") for name in CALLS),
    ],
)
def test_a_driver_that_refuses_is_quoted(on_driver, call, failing, said):
    on_driver(KernelDriver(failing))
    with pytest.raises(ConfigError) as caught:
        call()
    assert (
        str(caught.value)
        == f"copy_engine: the driver can't run a kernel {said.format(f'{failing} returned error 700')}"
    )


@pytest.mark.parametrize("call", [BulkCall, PlainCall])
def test_who_has_no_bindings_is_told_what_brings_them(monkeypatch, call):
    def load_bindings(purpose):
        raise ConfigError(f"copy_engine: {purpose} needs cuda-bindings")

    monkeypatch.setattr(nvrtc, "load_bindings", load_bindings)
    with pytest.raises(ConfigError, match=r"^copy_engine: a kernel (of bulk copies|for buffers) needs"):
        call()
