"""Compiled loops that make noted calls of the CUDA driver without Python's interpreter or its lock.

A call is a row of words: the function's address, and then its arguments, one word each. Every function is called
with as many words as the one with the most parameters; a function ignores the surplus. The functions are the
driver's: they take whole numbers and addresses, and return 0 or an error. A list of calls ends at the first error.

``CallLoop`` makes one list of calls. ``Server`` makes the lists that are published to it, one after the other, in
a thread that stays in the compiled loop until it is told to leave. The publisher tells it of a new list by a
number in memory, and by a file descriptor, which the thread reads while it has nothing to do. The number is
written with release order: a thread that sees it sees everything that was written before it.
"""

import ctypes
import os
import threading
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import IntEnum
from functools import cache
from logging import INFO
from typing import Any, Final

import numpy as np

from kv_offload_cpu.copy.compiled import Compiled, Unavailable, compiled

MOST_ARGUMENTS: Final = 11
"""Parameters of a call, at most: those of ``cuLaunchKernel``."""

MOST_LISTS: Final = 1024
"""Lists that are published and not yet made, at most."""

_ROW_WORDS: Final = MOST_ARGUMENTS + 1

_ZEROS: Final = [(0,) * (MOST_ARGUMENTS - count) for count in range(MOST_ARGUMENTS + 1)]
"""What is added to so many arguments."""


class _Word(IntEnum):
    """The words in memory by which publisher and server tell each other things."""

    PUBLISHED = 0
    """How many lists were published."""
    MADE = 1
    """How many of them were made or skipped."""
    BROKEN = 2
    """The number of the list that failed, counted from 1, or 0. Lists after it are skipped."""
    PLACE = 3
    """How many calls of the failed list were made before the one that failed."""
    ERROR = 4
    """The error of the call that failed."""
    IS_ENDING = 5
    """Whether the thread is to leave the loop when all published lists are made."""


class CallLoop:
    """The compiled functions."""

    def __init__(self, found: Compiled) -> None:
        self._found = found
        word, address = ctypes.c_int64, ctypes.c_void_p
        self._make = ctypes.CFUNCTYPE(word, address, word, address)(found.addresses[0])
        self._publish = ctypes.CFUNCTYPE(None, address, word)(found.addresses[1])
        self._serve = ctypes.CFUNCTYPE(None, address, address, word, address, address)(found.addresses[2])

    def make(self, calls: "Calls") -> tuple[int, int]:
        """How many calls returned 0, and the error of the call after them, or 0."""
        error = ctypes.c_int64(0)
        made = self._make(calls.address, len(calls), ctypes.addressof(error))
        return made, error.value

    def publish(self, word: int, value: int) -> None:
        """Write a number with release order: whoever sees it sees all earlier writes."""
        self._publish(word, value)

    def serve(self, state: int, ring: int, descriptor: int) -> None:
        """Make the lists that are published, until told to leave."""
        room = ctypes.c_int64(0)
        self._serve(state, ring, descriptor, _READ, ctypes.addressof(room))


_READ = ctypes.cast(ctypes.CDLL(None).read, ctypes.c_void_p).value


class Server:
    """Makes lists of calls in a thread of its own. All its methods are for one other thread, the publisher."""

    def __init__(self, loop: CallLoop, around: Callable[[], AbstractContextManager[object]], name: str) -> None:
        self._loop = loop
        self._around = around
        self._name = name
        self._state = np.zeros(len(_Word), np.int64)
        self._at = int(self._state.ctypes.data)
        self._ring = np.zeros((MOST_LISTS, 2), np.int64)
        self._published = 0
        self._thread: threading.Thread | None = None
        self._descriptor = -1

    @property
    def num_made(self) -> int:
        """How many lists were made or skipped."""
        return int(self._state[_Word.MADE])

    @property
    def is_lost(self) -> bool:
        """Whether the thread has ended without being told to."""
        return self._thread is not None and not self._thread.is_alive()

    @property
    def broken(self) -> tuple[int, int, int] | None:
        """The list that failed, its call that failed, both counted from 0, and the error; None if none failed."""
        list_number, place, error = self._state[_Word.BROKEN : _Word.ERROR + 1].tolist()
        return (list_number - 1, place, error) if list_number else None

    def publish(self, calls: "Calls") -> int:
        """Have one more list made; returns its number, counted from 0.

        The caller must not change the list before it was made, nor publish while ``MOST_LISTS`` wait.
        """
        assert self._published - self.num_made < MOST_LISTS, "no room for one more list"
        self._ring[self._published % MOST_LISTS] = calls.address, len(calls)
        self._published += 1
        self._loop.publish(self._at + 8 * _Word.PUBLISHED, self._published)
        if self._thread is None:
            self._state[_Word.IS_ENDING] = 0
            self._descriptor = os.eventfd(0, os.EFD_CLOEXEC)
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        else:
            os.eventfd_write(self._descriptor, 1)
        return self._published - 1

    def mend(self) -> None:
        """Make lists again after a failure, while none is made; lists that a lost thread left are dropped."""
        self._state[_Word.BROKEN], self._state[_Word.MADE] = 0, self._published

    def end(self) -> None:
        """Make the lists that are left and end the thread; the next list begins another. May be repeated."""
        if self._thread is not None:
            self._loop.publish(self._at + 8 * _Word.IS_ENDING, 1)
            os.eventfd_write(self._descriptor, 1)
            self._thread.join()
            os.close(self._descriptor)
            self._thread = None

    def _run(self) -> None:
        with self._around():
            self._loop.serve(self._at, self._ring.ctypes.data, self._descriptor)


@cache
def find_loop() -> CallLoop | Unavailable:
    """The loops of this process, or why there are none."""
    if not hasattr(os, "eventfd"):
        return Unavailable("needs a system with eventfd", "", INFO)
    found = compiled(_describe, ("make_calls", "publish", "serve"), for_cpu_engines=False)
    return found if isinstance(found, Unavailable) else CallLoop(found)


class Calls:
    """A list of calls in the form that the compiled loops read."""

    def __init__(self) -> None:
        self._words = array("q")

    def __len__(self) -> int:
        return len(self._words) // _ROW_WORDS

    def add(self, function: int, arguments: tuple[int, ...]) -> None:
        """Add a call of a function at an address."""
        self._words.extend((function, *arguments, *_ZEROS[len(arguments)]))

    def function(self, place: int) -> int:
        """The address of a call's function."""
        return self._words[place * _ROW_WORDS]

    @property
    def address(self) -> int:
        """The address of the list; no calls may be added any more."""
        return self._words.buffer_info()[0]


# The functions in LLVM's IR


def _describe(ir: Any) -> Any:
    module = ir.Module("calls")
    make = _describe_make(ir, module)
    _describe_publish(ir, module)
    _describe_serve(ir, module, make)
    return module


def _describe_make(ir: Any, module: Any) -> Any:
    """`make_calls`: takes rows, how many there are, and where an error goes; returns how many calls went well."""
    word, code = ir.IntType(64), ir.IntType(32)
    kind = ir.FunctionType(word, [word.as_pointer(), word, word.as_pointer()])
    function = ir.Function(module, kind, "make_calls")
    rows, count, error = function.args
    entry, head, body, failed, ended = map(
        function.append_basic_block, ("entry", "head", "body", "failed", "ended")
    )
    ir.IRBuilder(entry).branch(head)
    build = ir.IRBuilder(head)
    index = build.phi(word)
    index.add_incoming(word(0), entry)
    build.cbranch(build.icmp_unsigned("<", index, count), body, ended)
    build = ir.IRBuilder(body)
    begin = build.mul(index, word(_ROW_WORDS))
    words = [build.load(build.gep(rows, [build.add(begin, word(place))])) for place in range(_ROW_WORDS)]
    called = ir.FunctionType(code, [word] * MOST_ARGUMENTS)
    result = build.call(build.inttoptr(words[0], called.as_pointer()), words[1:])
    index.add_incoming(build.add(index, word(1)), body)
    build.cbranch(build.icmp_unsigned("==", result, code(0)), head, failed)
    build = ir.IRBuilder(failed)
    build.store(build.sext(result, word), error)
    build.ret(index)
    ir.IRBuilder(ended).ret(index)
    return function


def _describe_publish(ir: Any, module: Any) -> None:
    """`publish`: takes an address and a number, and writes one to the other for other threads to see."""
    word = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [word.as_pointer(), word]), "publish")
    build = ir.IRBuilder(function.append_basic_block())
    build.store_atomic(function.args[1], function.args[0], "release", 8)
    build.ret_void()


def _describe_serve(ir: Any, module: Any, make: Any) -> None:
    """`serve`: takes the state, the ring of lists, a file descriptor, what reads it, and room for a word."""
    word, code = ir.IntType(64), ir.IntType(32)
    place = word.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [place, place, word, word, place])
    function = ir.Function(module, kind, "serve")
    state, ring, descriptor, read, room = function.args
    names = ("entry", "head", "idle", "rest", "end", "some", "try", "failed", "next")
    entry, head, idle, rest, end, some, try_, failed, next_ = map(function.append_basic_block, names)
    ir.IRBuilder(entry).branch(head)

    def at(build: Any, number: _Word) -> Any:
        return build.gep(state, [word(number)])

    build = ir.IRBuilder(head)
    made = build.load(at(build, _Word.MADE))
    published = build.load_atomic(at(build, _Word.PUBLISHED), "acquire", 8)
    build.cbranch(build.icmp_unsigned("==", made, published), idle, some)
    build = ir.IRBuilder(idle)
    is_ending = build.load_atomic(at(build, _Word.IS_ENDING), "acquire", 8)
    build.cbranch(build.icmp_unsigned("==", is_ending, word(0)), rest, end)
    build = ir.IRBuilder(rest)
    reads = ir.FunctionType(word, [code, place, word])
    build.call(build.inttoptr(read, reads.as_pointer()), [build.trunc(descriptor, code), room, word(8)])
    build.branch(head)
    ir.IRBuilder(end).ret_void()
    build = ir.IRBuilder(some)
    build.cbranch(build.icmp_unsigned("==", build.load(at(build, _Word.BROKEN)), word(0)), try_, next_)
    build = ir.IRBuilder(try_)
    begin = build.mul(build.urem(made, word(MOST_LISTS)), word(2))
    rows, count = (build.load(build.gep(ring, [build.add(begin, word(column))])) for column in range(2))
    went = build.call(make, [build.inttoptr(rows, place), count, at(build, _Word.ERROR)])
    build.cbranch(build.icmp_unsigned("==", went, count), next_, failed)
    build = ir.IRBuilder(failed)
    build.store(went, at(build, _Word.PLACE))
    build.store(build.add(made, word(1)), at(build, _Word.BROKEN))
    build.branch(next_)
    build = ir.IRBuilder(next_)
    build.store_atomic(build.add(made, word(1)), at(build, _Word.MADE), "release", 8)
    build.branch(head)
