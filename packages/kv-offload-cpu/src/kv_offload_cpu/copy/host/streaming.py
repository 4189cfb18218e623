"""Moves byte ranges past the processor's caches by a compiled loop.

C's ``memmove`` bypasses the caches only in copies of hundreds of megabytes. In smaller ones it reads each cache
line of the target before it writes it, which adds half as much traffic again; and a call for each range costs more
than the bytes of a small range. A streaming store (LLVM: ``nontemporal``) writes whole cache lines and reads none.
No function of Python or its libraries makes them, so this module writes the loop in LLVM's IR, and LLVM compiles
it when an engine is made.

**Theory of operation.** The loop moves the begin of each range by bytes and then words, up to where the target
begins a cache line; then whole lines by streaming stores, which must be aligned; and the rest by words and bytes.
Meanwhile it prefetches the first lines of the next range's source, since a processor's own prefetching ends with a
page of memory. The function calls nothing. Streaming stores are weakly ordered, so it ends with a fence (on x86
``mfence`` or a locked operation, which both wait for them): a thread that learns of its end sees the bytes.

Ranges and jobs of every size are moved in this way. Measured: from 256 bytes on it is faster than the same loop
with ordinary stores, and no slower below. Ordinary stores leave the bytes in the caches. Still, moving a job and
then reading what it wrote takes no longer in all than with ordinary stores, and less from 16 MiB on.

The loop is compiled once in a process; ``find_streaming`` returns why not, where it can't be.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from logging import WARNING
from typing import Any, Final

import numpy as np

from kv_offload_cpu.copy.compiled import Compiled, Unavailable, compiled
from kv_offload_cpu.copy.engine import Numbers
from kv_offload_cpu.copy.host.moves import Mover

_LINE_BYTES: Final = 64
"""Bytes of a cache line, which a processor writes at once and streaming stores should fill."""

_LINES_AHEAD: Final = 8
"""Lines of the next range to prefetch. They make moving pages of 4 KiB a third faster; twice as many gain less."""

_PIECE_BYTES: Final = 4 << 20
"""The bytes from which another thread pays: waking a helper takes as long as moving a megabyte or two."""

_NAME: Final = "move_ranges"

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


@cache
def find_streaming() -> Mover | Unavailable:
    """The mover of this process, or why there is none."""
    found = compiled(_describe, [_NAME], for_cpu_engines=True)
    if isinstance(found, Unavailable):
        remedies = [remedy for remedy in (found.remedy, "use 'host'") if remedy]
        return found._replace(remedy=", or ".join(remedies))
    move = _StreamingMove(found)
    if not _moves_rightly(move):
        return Unavailable("moved wrong bytes when it was tried", "use 'host'", WARNING)
    return Mover(move, _PIECE_BYTES)


class _StreamingMove:
    """The compiled function."""

    def __init__(self, found: Compiled) -> None:
        self._found = found
        self._call = _SIGNATURE(found.addresses[0])

    def __call__(self, targets: Numbers, sources: Numbers, sizes: Numbers) -> None:
        lengths = len(targets), len(sources), len(sizes)
        assert len(set(lengths)) == 1, "targets, sources, sizes of different lengths: {}, {}, {}".format(*lengths)
        columns = [np.ascontiguousarray(column, np.int64) for column in (targets, sources, sizes)]
        self._call(*(column.ctypes.data for column in columns), len(sizes))


def _moves_rightly(move: _StreamingMove) -> bool:
    """Whether ``move`` is right for ranges of several sizes, with ends at all kinds of addresses."""
    source = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)
    target = np.zeros(1000, np.uint8)
    wanted = target.copy()
    ranges = np.array([(3, 500, 1), (5, 10, 200), (210, 333, 64), (290, 401, 0), (300, 64, 97), (500, 7, 391)])
    for into, out_of, size in ranges.tolist():
        wanted[into : into + size] = source[out_of : out_of + size]
    move(ranges[:, 0] + target.ctypes.data, ranges[:, 1] + source.ctypes.data, ranges[:, 2])
    return target.tobytes() == wanted.tobytes()


# The function in LLVM's IR


def _describe(ir: Any) -> Any:
    """The module with the function of four arguments: arrays of targets, sources and sizes, and their length."""
    module, word = ir.Module(_NAME), ir.IntType(64)
    arguments = [word.as_pointer(), word.as_pointer(), word.as_pointer(), word]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), _NAME)
    code = _Code(ir, module, ir.IRBuilder(function.append_basic_block()))
    *columns, count = function.args
    with code.steps(word(0), count, 1) as index:
        target, source, size = (code.item(column, index) for column in columns)
        code.fetch_first_lines(columns[1], index, count)
        code.move_range(target, source, size)
    code.builder.fence("seq_cst")
    code.builder.ret_void()
    return module


class _Code:
    """Writes the parts of the function, one after the other."""

    def __init__(self, ir: Any, module: Any, builder: Any) -> None:
        self.builder = builder
        self._word, self._byte, self._flag = ir.IntType(64), ir.IntType(8), ir.IntType(32)
        self._line = ir.VectorType(self._word, _LINE_BYTES // 8)
        self._streaming = module.add_metadata([self._flag(1)])
        place = self._byte.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [place, self._flag, self._flag, self._flag])
        self._prefetch = module.declare_intrinsic("llvm.prefetch", [place], kind)

    @contextmanager
    def steps(self, begin: Any, end: Any, step: int) -> Iterator[Any]:
        """A loop: code written inside runs for ``begin``, ``begin + step`` and so on, below ``end``."""
        build = self.builder
        head, body, after = (build.append_basic_block(name) for name in ("head", "body", "after"))
        before = build.block
        build.branch(head)
        build.position_at_end(head)
        index = build.phi(self._word)
        index.add_incoming(begin, before)
        build.cbranch(build.icmp_unsigned("<", index, end), body, after)
        build.position_at_end(body)
        yield index
        index.add_incoming(build.add(index, self._word(step)), build.block)
        build.branch(head)
        build.position_at_end(after)

    def item(self, column: Any, index: Any) -> Any:
        """One number of an array."""
        return self.builder.load(self.builder.gep(column, [index]))

    def fetch_first_lines(self, sources: Any, index: Any, count: Any) -> None:
        """Prefetch the source of the next range; at the end that of the last one again. Any address is allowed."""
        build, read, keep, data = self.builder, self._flag(0), self._flag(3), self._flag(1)
        following = build.add(index, self._word(1))
        following = build.select(build.icmp_unsigned("<", following, count), following, index)
        source = self.item(sources, following)
        for line in range(_LINES_AHEAD):
            address = build.add(source, self._word(line * _LINE_BYTES))
            build.call(self._prefetch, [build.inttoptr(address, self._byte.as_pointer()), read, keep, data])

    def move_range(self, target: Any, source: Any, size: Any) -> None:
        """Move all bytes of one range."""
        build, word = self.builder, self._word
        gap = build.and_(build.neg(target), word(_LINE_BYTES - 1))  # bytes up to the target's next cache line
        lines = build.select(build.icmp_unsigned("<", gap, size), gap, size)
        first_words = build.and_(lines, word(7))
        rest = build.add(lines, build.and_(build.sub(size, lines), word(-_LINE_BYTES)))
        last_bytes = build.add(rest, build.and_(build.sub(size, rest), word(-8)))
        for kind, begin, end in (
            (self._byte, word(0), first_words),
            (self._word, first_words, lines),
            (self._line, lines, rest),
            (self._word, rest, last_bytes),
            (self._byte, last_bytes, size),
        ):
            self._move(kind, target, source, begin, end)

    def _move(self, kind: Any, target: Any, source: Any, begin: Any, end: Any) -> None:
        """Move the bytes from ``begin`` to ``end`` of a range, in units of one kind."""
        build, is_line = self.builder, kind is self._line
        unit_bytes = _LINE_BYTES if is_line else kind.width // 8
        with self.steps(begin, end, unit_bytes) as at:
            from_, to = (build.inttoptr(build.add(base, at), kind.as_pointer()) for base in (source, target))
            stored = build.store(build.load(from_, align=1), to, align=unit_bytes if is_line else 1)
            if is_line:
                stored.set_metadata("nontemporal", self._streaming)
