"""One rank's files, a chunk for them, and what they say."""

import numpy as np

from kv_api import OffloadKey
from kv_offload_file.label import Label
from kv_offload_file.slot_file import ALIGNMENT, SlotFile, read_rows

KEY, OTHER = OffloadKey(b"one"), OffloadKey(b"other")
LABEL = Label(KEY, epoch=5, number=1, nth=0)
BYTES = np.random.default_rng(0).integers(0, 256, 2 * ALIGNMENT, dtype=np.uint8)


def opened(folder, num_slots=4, **options):
    return SlotFile(folder, 0, num_slots, 2 * ALIGNMENT, **options)


def kill(file):
    file._close_both()


def read(file, slot=1, label=LABEL):
    into = np.zeros_like(BYTES)
    file.read(slot, label, into.data)
    return into


def rows(folder, num_slots=4):
    return {slot: row.label for slot, row in read_rows(folder, 0, num_slots)}
