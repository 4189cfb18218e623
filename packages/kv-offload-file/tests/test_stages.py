"""Workers that are stages of a pipeline: their files, of other slots each, are in one folder, and found again."""

import os
from dataclasses import replace

import pytest
from kv_offload_file_rig import TAKEN, Rig, config

from kv_offload_file import home_folder
from kv_offload_file.layers import claim, has_same_layers
from kv_offload_file.slot_file import ALIGNMENT, rows_path

PER_CHUNK = 16
STAGES = ("ab", "cde")
"""Chunks of 16 blocks of two layers take a page of the disk, those of three layers two."""


def untold(folder, stages=STAGES, **settings):
    """One with room for twelve chunks on its first rank."""
    settings.setdefault("file_staging_bytes", 16 * ALIGNMENT)
    return Rig(folder, 12, ranks=len(stages), stages=stages, blocks_per_chunk=PER_CHUNK, **settings)


def engine(folder, stages=STAGES, rooms=None, **settings):
    """The same, told what all ranks have."""
    rig = untold(folder, stages, **settings)
    rig.manager.limit_chunks(min(rooms or [rank.worker.num_chunks for rank in rig.ranks]))
    return rig


def leave(folder, numbers):
    """Store chunks by an engine, and stop it."""
    first = engine(folder)
    assert first.store(numbers)
    first.stop()


def test_all_are_in_one_folder(tmp_path):
    configs = [config(tmp_path, rank=rank, ranks=2, stages=STAGES) for rank in range(2)]
    assert len({home_folder(str(tmp_path), one, "") for one in configs}) == 1
    assert len({home_folder(str(tmp_path), config(tmp_path, rank=rank), "") for rank in range(2)}) == 1


def test_no_more_is_stored_than_the_smallest_has_room_for(tmp_path):
    rig = engine(tmp_path)
    assert [rank.worker.num_chunks for rank in rig.ranks] == [12, 12 * TAKEN // (TAKEN + ALIGNMENT)]
    for number in range(20):
        assert rig.store([number])
    there = [number for number in range(20) if rig.hits([number])]
    assert len(there) == 6
    assert rig.load(there)
    assert rig.manager.config_info()[0]["file_num_chunks"] == 6
    rig.check()
    rig.stop()


def test_what_was_stored_is_found_again_once_all_have_told(tmp_path):
    leave(tmp_path, [1, 2, 3])
    again = untold(tmp_path)
    assert again.hits([1]) == 0
    again.manager.limit_chunks(6)
    assert again.hits([1, 2, 3]) == 3
    assert again.load([1, 2, 3])
    again.check()
    again.stop()


def test_what_lies_beyond_the_room_of_all_is_not(tmp_path):
    leave(tmp_path, [1, 2, 3])
    again = engine(tmp_path, rooms=[2])
    assert [again.hits([number]) for number in (1, 2, 3)] == [1, 1, 0]
    again.check()
    again.stop()


def test_after_a_reset_nothing_is_found(tmp_path):
    leave(tmp_path, [1])
    again = untold(tmp_path)
    again.manager.reset_cache()
    again.manager.limit_chunks(6)
    assert again.hits([1]) == 0
    again.stop()


def test_files_of_another_cut_are_gone_from_the_disk_before_the_new_one_is_said(tmp_path, monkeypatch):
    """Else a machine that goes down in between would leave the old bytes under the new layers."""
    leave(tmp_path, [1])
    second = config(tmp_path, rank=1, ranks=2, stages=("ab", "cdf"), blocks_per_chunk=PER_CHUNK)
    folder = home_folder(str(tmp_path), second, "")
    said = folder / "rank-1.layers"
    before, seen = said.read_text(), []
    monkeypatch.setattr(os, "fsync", lambda fd: seen.append((rows_path(folder, 1).exists(), said.read_text())))
    claim(folder, second)
    assert seen == [(False, before)]
    assert said.read_text() != before


def test_whichever_rank_comes_first_makes_the_folder(tmp_path):
    second = config(tmp_path, rank=1, ranks=2, stages=STAGES)
    claim(tmp_path / "not" / "yet", second)
    assert has_same_layers(tmp_path / "not" / "yet", second)
    assert not has_same_layers(tmp_path / "not" / "yet", config(tmp_path, ranks=2, stages=STAGES))


def test_layers_of_all_groups_tell_one_cut_from_another(tmp_path):
    usual = config(tmp_path, ranks=2, stages=STAGES)
    [group] = usual.groups
    cuts = [
        replace(usual, groups=groups)
        for groups in ([group], [group, group], [group, replace(group, layer_names=("x",))])
    ]
    cuts.append(replace(usual, worker_kv_bytes_per_block=7))
    for cut in cuts:
        claim(tmp_path, cut)
        assert [has_same_layers(tmp_path, other) for other in cuts] == [other is cut for other in cuts]


@pytest.mark.parametrize("stages", [("ab", "cdf"), ("ab", "c")])
def test_of_a_model_that_is_cut_otherwise_nothing_is_loaded(tmp_path, stages):
    """The first rank holds the same layers, and the scheduler's side knows no others."""
    leave(tmp_path, [1, 2])
    other = engine(tmp_path, stages)
    if other.hits([1, 2]):
        assert not other.load([1, 2])
    assert other.store([3])
    other.check()
    other.stop()
    third = engine(tmp_path, stages)
    assert third.hits([3]) == 1
    assert third.load([3])
    third.stop()
