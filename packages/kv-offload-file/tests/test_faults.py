"""Engines on a disk that fails at random and comes back: nothing wrong is loaded, and no engine ends."""

import errno
import os
from random import Random

import pytest
from kv_offload_file_rig import Rig, make_key, make_keys

from kv_api import LookupResult

TURNS = 60
CHUNKS = 30
FAILS = (0, 0, 0.02, 0.3)
"""How often the disk does, in one turn or another."""


class Disk:
    """In place of the system's calls, which it refuses as often as ``rate`` says; a write maybe after a part."""

    def __init__(self, random, monkeypatch):
        self.random = random
        self.rate = 0.0
        for name in ("pwrite", "pread", "preadv", "fsync", "ftruncate"):
            monkeypatch.setattr(os, name, self._failing(getattr(os, name), is_write=name == "pwrite"))

    def _failing(self, really, *, is_write):
        def call(fd, *arguments):
            if self.random.random() >= self.rate:
                return really(fd, *arguments)
            if is_write and self.random.random() < 0.5:
                data, place = arguments
                really(fd, data[: max(1, len(data) // 3)], place)
            raise OSError(self.random.choice([errno.ENOSPC, errno.EIO, errno.EROFS]), "the disk fails")

        return call


def take_turn(rig, random):
    """Load of some chunks what is there, and store the rest."""
    first = random.randrange(CHUNKS)
    numbers = [number % CHUNKS for number in range(first, first + random.randint(1, 3))]
    there = [n for n in numbers if rig.manager.lookup(make_key(n), rig.context) is LookupResult.HIT]
    if there and not rig.load(there):  # which compares bytes if it went well
        rig.manager.drop(make_keys(there))
    rig.try_store([number for number in numbers if number not in there] or numbers)
    if random.random() < 0.03:
        rig.manager.reset_cache()
        rig.manager.on_reset_flushed()
    rig.check()


@pytest.mark.parametrize("settings", [[{}], [{"file_shared": True, "file_engine": n} for n in range(2)]])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_wrong_is_loaded(tmp_path, monkeypatch, settings, seed):
    random = Random(seed)
    disk = Disk(random, monkeypatch)
    rigs = [Rig(tmp_path, 12, ranks=2, **own) for own in settings]
    for turn in range(TURNS):
        index = random.randrange(len(rigs))
        disk.rate = random.choice(FAILS)
        take_turn(rigs[index], random)
        if turn % 20 == 19:
            random.choice([Rig.kill, Rig.stop])(rigs[index])
            disk.rate = 0.0
            rigs[index] = Rig(tmp_path, 12, ranks=2, **settings[index])
    disk.rate = 0.0
    for rig in rigs:
        there = [n for n in range(CHUNKS) if rig.hits([n])]
        for number in there:
            rig.load([number])
        rig.check()
    for rig in rigs:
        rig.stop()
