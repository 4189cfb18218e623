"""Where an engine lives: found again by who means the same, used by one at a time, and of one epoch."""

import fcntl
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import pytest
from kv_offload_file_rig import config

from kv_api import ConfigError
from kv_offload_file import home_folder
from kv_offload_file.epoch import EpochFile
from kv_offload_file.folder import home_of, number_of
from kv_offload_file.home import LockedHome


def home(folder, tag="", **settings):
    return LockedHome(str(folder), config(folder, **settings), tag)


def others(folder):
    """Configurations whose bytes mean something else, by what is different."""
    usual = config(folder)
    [group] = usual.groups
    return {
        "model": replace(usual, model=replace(usual.model, name="org/model2")),
        "dtype": replace(usual, model=replace(usual.model, dtype="bfloat16")),
        "bytes": replace(usual, worker_kv_bytes_per_block=7),
        "chunk": replace(usual, cache=replace(usual.cache, blocks_per_chunk=3)),
        "hash": replace(usual, cache=replace(usual.cache, tokens_per_hash=8)),
        "block": replace(usual, groups=(replace(group, tokens_per_block=32),)),
        "window": replace(usual, groups=(replace(group, sliding_window_size_in_chunks=4),)),
        "layers": replace(usual, groups=(replace(group, layer_names=("b", "a")),)),
        "groups": replace(usual, groups=(group, group)),
        "layout": replace(usual, kv_cache_layout="HND"),
        "canonical": replace(usual, canonical_layout=True),
        "interleaved": replace(
            usual, parallel=replace(usual.parallel, dcp_size=2, cp_kv_cache_interleave_size=16)
        ),
        **{
            name: replace(usual, parallel=replace(usual.parallel, **{name: 2}))
            for name in ("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size", "data_parallel_index")
        },
    }


def test_whatever_changes_what_bytes_mean_is_another_folder(tmp_path):
    folders = {name: home_folder(str(tmp_path), other, "") for name, other in others(tmp_path).items()}
    folders |= {"usual": home_folder(str(tmp_path), config(tmp_path), "")}
    folders |= {"tag": home_folder(str(tmp_path), config(tmp_path), "tuned")}
    assert len({*folders.values()}) == len(folders)
    assert all(folder.parent == tmp_path for folder in folders.values())


@pytest.mark.parametrize("how", ["begin", "renew"])
def test_who_has_an_epoch_in_common_waits_for_its_turn(tmp_path, how):
    """Else two that start together would each begin the first one."""
    begun = []
    with ThreadPoolExecutor() as threads:
        folder = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_SH)
        waiting = threads.submit(lambda: begun.append(getattr(EpochFile(tmp_path, in_common=True), how)()))
        alone = threads.submit(EpochFile(tmp_path).begin).result()
        assert not wait([waiting], timeout=0.2).done and not begun
        os.close(folder)
        waiting.result()
    assert (begun == [alone]) == (how == "begin")


def test_a_new_epoch_in_common_is_for_those_that_start(tmp_path):
    epochs = EpochFile(tmp_path, in_common=True)
    first = epochs.begin()
    own = epochs.renew()
    after = EpochFile(tmp_path, in_common=True).begin()
    assert len({first, own, after}) == 3
    assert EpochFile(tmp_path).renew() == EpochFile(tmp_path).begin() != after


def test_whatever_does_not_is_the_same(tmp_path):
    usual_config = config(tmp_path)
    usual = home_folder(str(tmp_path), usual_config, "")
    same = [
        config(tmp_path, 99),
        config(tmp_path, engine="another"),
        config(tmp_path, events=True),
        config(tmp_path, rank=1, ranks=1),
        # Nobody shares the tokens of a block.
        replace(usual_config, parallel=replace(usual_config.parallel, cp_kv_cache_interleave_size=16)),
        config(tmp_path, eviction_policy="arc", copy_threads=2, file_direct=True),
        replace(config(tmp_path), model=replace(config(tmp_path).model, max_model_len=7)),
    ]
    assert {home_folder(str(tmp_path), other, "") for other in same} == {usual}


def test_a_later_version_finds_the_folder_of_this_one():
    """Unless it reads other bytes there: then it has another number in ``_FORMAT``, and this one another hash."""
    assert home_folder("somewhere", config(""), "").name == "org_model-6f647fc50f00cfa9"


@pytest.mark.parametrize(
    ("model", "begin"),
    [
        ("org/model", "org_model-"),
        ("../../etc", "etc-"),
        ("..", "model-"),
        ("", "model-"),
        ("x" * 300, "x" * 80 + "-"),
        ("a/folder/" + "x" * 70 + "/the-model", "x" * 70 + "_the-model-"),
    ],
)
def test_the_folder_is_named_like_the_model_and_lies_in_that_of_the_user(tmp_path, model, begin):
    usual = config(tmp_path)
    folder = home_folder(str(tmp_path), replace(usual, model=replace(usual.model, name=model)), "")
    assert folder.parent == tmp_path
    assert folder.name.startswith(begin)
    assert len(folder.name) == len(begin) + 16


def test_only_the_home_of_an_engine_has_its_number(tmp_path):
    """A copy that somebody keeps beside it is no engine's."""
    assert [number_of(home_of(tmp_path, number).name) for number in (0, 7, 10)] == [0, 7, 10]
    for other in ("engine-1.old", "engine-01", "engine-", "engine--1", "an engine-1", "engine-1\n"):
        assert number_of(other) is None


def test_it_says_what_its_bytes_mean(tmp_path):
    at = home(tmp_path, tag="tuned")
    said = json.loads((at.folder / "meaning.json").read_text())
    assert (said["model"], said["tag"], said["groups"]) == ("org/model", "tuned", [[16, None, "a", "b"]])
    at.close()


def test_one_engine_at_a_time(tmp_path):
    first = home(tmp_path)
    by = rf"another engine \(process {os.getpid()}\)"
    with pytest.raises(
        ConfigError, match=rf"file_dir: .*org_model-\w+ is in use by {by}; give each a file_dir or a file_tag"
    ):
        home(tmp_path)
    home(tmp_path, tag="another").close()
    first.close()
    (first.folder / "lock").write_text("12345678901234567890")  # a process had it whose number was longer
    next_one = home(tmp_path)
    assert (first.folder / "lock").read_text() == str(os.getpid())
    next_one.close()
    before = os.listdir("/proc/self/fd")
    first.close()
    assert len(os.listdir("/proc/self/fd")) == len(before), "once is enough"
    home(tmp_path).close()


def test_a_lock_with_the_first_descriptor_is_released_like_any(tmp_path):
    """As in a server that was started without standard input."""
    kept = os.dup(0)
    try:
        os.close(0)
        first = home(tmp_path)
        assert os.fstat(0).st_ino == (first.folder / "lock").stat().st_ino
        first.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(0)
        home(tmp_path).close()
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_who_is_refused_leaves_nothing_open(tmp_path):
    first, before = home(tmp_path), os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(ConfigError):
            home(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == len(before)
    first.close()


def test_the_folder_is_made_wherever_it_is_to_be(tmp_path):
    at = home(tmp_path / "not" / "yet")
    assert at.folder.is_dir()
    assert (at.folder / "lock").stat().st_mode & 0o777 == 0o600, "or others could keep it locked"
    at.close()


def test_an_epoch_is_on_the_disk_before_anybody_hears_of_it(tmp_path, monkeypatch):
    at = home(tmp_path)
    before, sync, synced = os.listdir("/proc/self/fd"), os.fsync, []

    def fsync(fd):
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        synced.append((path.name, (path if path.is_file() else path / "epoch").read_text()))
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    at.renew()
    written = f"{at.epoch:016x}"
    assert synced == [("epoch.new", written), (at.folder.name, written)]
    assert len(os.listdir("/proc/self/fd")) == len(before)
    at.close()


def test_a_folder_that_can_not_be_synced_does_not_stay_open(tmp_path, monkeypatch):
    at = home(tmp_path)
    before, sync = os.listdir("/proc/self/fd"), os.fsync

    def fsync(fd):
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(5, "Input/output error")
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    at.renew()
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert not (at.folder / "epoch").exists()
    at.close()


@pytest.mark.parametrize("draw", [lambda bits: 0, lambda bits: (1 << bits) - 1])
def test_the_least_and_the_largest_number_are_epochs_too(tmp_path, monkeypatch, draw):
    monkeypatch.setattr("secrets.randbits", draw)
    first = home(tmp_path)
    first.close()
    monkeypatch.undo()
    assert home(tmp_path).epoch == first.epoch > 0


def test_the_epoch_lasts_until_it_is_renewed(tmp_path):
    at = home(tmp_path)
    epoch = at.epoch
    at.close()
    at = home(tmp_path)
    assert at.epoch == epoch > 0
    at.renew()
    renewed = at.epoch
    assert renewed not in (epoch, 0)
    at.close()
    at = home(tmp_path)
    assert at.epoch == renewed
    at.close()


@pytest.mark.parametrize("text", ["", "nonsense", "0" * 16, "-000000000000005", "f" * 16, "7" * 17, "7" * 15, "ä"])
def test_an_epoch_that_can_not_be_read_is_a_new_one(tmp_path, text):
    at = home(tmp_path)
    epoch = at.epoch
    at.close()
    (at.folder / "epoch").write_text(text)
    at = home(tmp_path)
    assert at.epoch not in (epoch, 0)
    assert int((at.folder / "epoch").read_text(), 16) == at.epoch
    assert 0 < at.epoch < 2**63, "a row has room for it"
    at.close()


def test_an_epoch_that_can_not_be_written_is_over_all_the_same(tmp_path, caplog):
    at = home(tmp_path)
    epoch = at.epoch
    (at.folder / "epoch.new").mkdir()
    at.renew()
    before = at.epoch
    at.renew()
    assert len({epoch, before, at.epoch, 0, 1}) == 5
    said = f"{at.folder}: what is stored now will be forgotten at the next start: "
    assert [record.getMessage().startswith(said) for record in caplog.records] == [True, True]
    assert {record.name for record in caplog.records} == {"kv_offload_file"}
    at.close()
    (at.folder / "epoch.new").rmdir()
    again = home(tmp_path)
    assert again.epoch not in (epoch, at.epoch)
    again.close()


def test_a_disk_that_takes_no_epoch_and_gives_none_up_breaks_nothing_now(tmp_path, monkeypatch, caplog):
    at = home(tmp_path)
    epoch = at.epoch

    def refuse(self, *args, **options):
        raise OSError(30, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    at.renew()
    assert at.epoch not in (epoch, 0)
    assert f"{at.folder}: remove it before the next start, or what is forgotten will be found: " in caplog.text
    at.close()


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (OSError(37, "No locks available"), r"file_dir: No locks available: .*org_model-\w+$"),
        (OSError(5, "Input/output error", "that"), r"file_dir: Input/output error: that$"),
    ],
)
def test_what_the_system_has_against_a_folder_is_said_of_a_file(tmp_path, monkeypatch, problem, said):
    def fail(fd, how):
        raise problem

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(ConfigError, match=said):
        home(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize("said", ["", "me"])
def test_one_that_does_not_say_its_process(tmp_path, said):
    """As an earlier version doesn't, and whoever has just locked the file."""
    first = home(tmp_path)
    (first.folder / "lock").write_text(said)
    with pytest.raises(ConfigError, match="is in use by another engine; give"):
        home(tmp_path)
    first.close()
    second = home(tmp_path)
    assert (second.folder / "lock").read_text() == str(os.getpid())
    second.close()


def test_without_locks_no_folder_is_taken(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ConfigError, match=r"file_dir: this system has no locks of files \(fcntl\), and"):
        home(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_folder_that_can_not_be(tmp_path):
    (tmp_path / "file").write_text("")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ConfigError, match=r"file_dir: Not a directory: .*file/"):
        home(tmp_path / "file")
    assert len(os.listdir("/proc/self/fd")) == len(before)


FORKS = """
import os, sys
from kv_offload_file_rig import config
from kv_offload_file.home import LockedHome
home = LockedHome(sys.argv[1], config(sys.argv[1]), "")
if not os.fork():
    print("forked", flush=True)
sys.stdin.read()
print("ended")
"""


def test_a_forked_child_of_an_engine_that_was_killed_does_not_keep_its_home(tmp_path):
    """Nor does it let go of the home of an engine that lives."""
    forked = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with forked:
        assert forked.stdout.readline() == "forked\n"
        with pytest.raises(ConfigError, match=rf"is in use by another engine \(process {forked.pid}\)"):
            home(tmp_path)
        forked.kill()
        forked.wait()
        home(tmp_path).close()
        forked.stdin.close()
        assert forked.stdout.read() == "ended\n", "the child had ended before"
