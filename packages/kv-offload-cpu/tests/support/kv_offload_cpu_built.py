"""A kernel in CUDA C++ on the host, by the compiler that the package ziglang brings.

What stands in for a multiprocessor is a header, which the source includes where ``PRIMITIVES`` names one.
"""

import ctypes
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings

from kv_offload_cpu import Direction
from kv_offload_cpu.copy.cuda.methods.page_table import COLUMNS

ALWAYS = {"max_examples": 100, "deadline": None, "suppress_health_check": list(HealthCheck)}

_HEADER = "job.h"
_SUPPORT = Path(__file__).parent
_EMPTY = ("-D__device__=", "-D__global__=", "-D__grid_constant__=", "-D__forceinline__=inline")


class Text(SimpleNamespace):
    """A source and the header that all of them include, perhaps broken."""

    def __init__(self, file):
        folder = files("kv_offload_cpu.copy.cuda")
        super().__init__(source=(folder / file).read_text(), header=(folder / _HEADER).read_text())

    def broken(self, before, after):
        """Another text in one place, where there is one such place."""
        assert self.source.count(before) + self.header.count(before) == 1, before
        other = SimpleNamespace(**vars(self))
        other.source, other.header = (part.replace(before, after) for part in (self.source, self.header))
        return other


def built(folder, text, shim, *defined):
    """The function of a source that runs all threads of a launch, and says what was wrong."""
    (folder / "kernel.cpp").write_text(text.source)
    (folder / _HEADER).write_text(text.header)
    defined = (*_EMPTY, *defined, f'-DPRIMITIVES="{_SUPPORT / shim}"')
    command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1", "-std=c++17", *defined]
    subprocess.run([*command, str(folder / "kernel.cpp"), "-o", str(folder / "kernel.so")], check=True)
    run = ctypes.CDLL(str(folder / "kernel.so")).run
    run.restype = ctypes.c_char_p
    return run


class Numbers(SimpleNamespace):
    """A tensor."""

    def data_ptr(self):
        return self.numbers.ctypes.data


class HostDriver:
    """Tables on the host, and kernels on it. ``launched`` has the words of each kernel.

    Whoever inherits has ``make``, a kernel for one direction, and ``run``, which says what was wrong with one.
    """

    def __init__(self, kind):
        self.mapped_shift = 0
        self.launched = []
        self._kind = kind

    def new_table(self, num_rows):
        return Numbers(numbers=np.zeros(COLUMNS * num_rows, np.int64))

    def new_steps(self, numbers, count, word, kernels):
        assert kernels is self._kind
        steps = Numbers(numbers=numbers)
        return {way: self.make(steps, count, word=word, is_store=way is Direction.STORE) for way in Direction}

    def upload(self, stream, table, num_rows):
        table.on_device = Numbers(numbers=table.numbers[: COLUMNS * num_rows].copy())

    def run_kernel(self, stream, launch):
        self.launched.append(launch.steps.word)
        kernel = launch.steps.on_device[launch.direction]
        call = kernel.call(7, launch.table.on_device.data_ptr(), launch.num_rows, launch.rows, launch.programs)
        self.launch(*call.arguments)

    def launch(self, function, x, y, z, threads, ty, tz, shared, stream, arguments, extra):
        """What ``cuLaunchKernel`` would be asked."""
        assert (z, ty, tz, stream, extra) == (1, 1, 1, 7, 0)
        job = ctypes.c_void_p(ctypes.c_void_p.from_address(arguments).value)
        problem = self.run(function, job, (x, y), threads, shared)
        assert problem is None, problem.decode()


def check_that_it_fails(any_job, check, *given):
    """Whatever is wrong with a kernel must be found by ``check``."""
    is_enough = settings(**ALWAYS, phases=[Phase.generate], report_multiple_bugs=False, database=None)
    with pytest.raises(AssertionError):
        is_enough(any_job(check))(*given)
