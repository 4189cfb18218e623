"""The shared file: who may attach, who removes it, and that no crash at any moment leaves one behind."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kv_api import ConfigError
from kv_offload_cpu import shared_region
from kv_offload_cpu.shared_region import PREFIX, SharedRegion, _file_name

NUM_BYTES = 8192

CHILD = """
import os, signal, sys
from pathlib import Path
from kv_offload_cpu.shared_region import SharedRegion
folder, rank, fatal = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
events = 0
def die_at_the_fatal_event(name, arguments):
    global events
    if name in ("open", "os.truncate", "os.remove", "fcntl.flock", "mmap.__new__", "os.scandir", "os.listdir"):
        events += 1
        if events == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(die_at_the_fatal_event)
region = SharedRegion(folder, "engine", rank, 2, 8192)
region.map[rank] = 100 + rank
region.release()
print(events)
"""


def attach(folder, rank=0, num_ranks=2, num_bytes=NUM_BYTES, engine_id="engine", **options):
    return SharedRegion(folder, engine_id, rank, num_ranks, num_bytes, **options)


def let_go(*regions):
    for region in regions:
        region.map.close()
        region.release()


def names(folder):
    return sorted(os.listdir(folder))


def test_all_see_the_same_bytes_and_the_name_goes_with_the_last_to_attach(tmp_path):
    first = attach(tmp_path, 0)
    assert names(tmp_path) == [first.path.name]
    second = attach(tmp_path, 1)
    assert names(tmp_path) == []
    first.map[5] = 7
    assert second.map[5] == 7
    let_go(first, second, first)
    assert names(tmp_path) == []


def test_one_worker_alone_has_no_name_at_all(tmp_path):
    region = attach(tmp_path, 0, 1)
    assert names(tmp_path) == []
    let_go(region)


def test_release_before_all_attached_removes_the_file_with_the_last_holder(tmp_path):
    first, second = attach(tmp_path, 0, 3), attach(tmp_path, 1, 3)
    let_go(first)
    assert names(tmp_path) == [second.path.name]
    let_go(second)
    assert names(tmp_path) == []


def test_engines_have_files_of_their_own(tmp_path):
    regions = [attach(tmp_path, engine_id=engine_id) for engine_id in ("a/b", "a_b", "x" * 200)]
    assert len(names(tmp_path)) == 3
    assert all(len(name) < 128 and name.startswith(PREFIX) for name in names(tmp_path))
    let_go(*regions)


def test_only_the_one_that_makes_the_file_checks_for_room(tmp_path):
    calls = []
    first = attach(tmp_path, 0, before_create=lambda: calls.append(0))
    second = attach(tmp_path, 1, before_create=lambda: calls.append(1))
    assert calls == [0]
    let_go(first, second)


def test_a_refusal_to_make_the_file_leaves_none(tmp_path):
    def refuse():
        raise ConfigError("too much")

    with pytest.raises(ConfigError, match="too much"):
        attach(tmp_path, before_create=refuse)
    assert names(tmp_path) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_is_there_already_is_refused(tmp_path, rank):
    first = attach(tmp_path, rank)
    with pytest.raises(ConfigError) as caught:
        attach(tmp_path, rank)
    assert str(caught.value) == (
        f"engine 'engine': worker {rank} is attached to {first.path.name} already; "
        "another engine with this id is running or has not ended yet"
    )
    assert names(tmp_path) == [first.path.name]
    let_go(first)
    assert names(tmp_path) == []


def test_what_cannot_be_mapped_leaves_no_file(tmp_path, monkeypatch):
    def refuse(fd, length):
        raise OSError("no room in the address space")

    monkeypatch.setattr(shared_region.mmap, "mmap", refuse)
    with pytest.raises(OSError, match="no room"):
        attach(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("call", ["ftruncate", "pwrite"])
def test_a_file_that_the_system_refuses_to_fill_is_closed_and_gone(tmp_path, monkeypatch, call):
    def refuse(fd, *rest):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = os.listdir("/dev/fd")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(OSError, match="No space left"):
            attach(tmp_path, layout=(2, 1))
    assert (names(tmp_path), os.listdir("/dev/fd")) == ([], before)
    let_go(attach(tmp_path, layout=(2, 1)))


def test_nobody_else_may_read_it(tmp_path):
    region = attach(tmp_path)
    assert region.path.stat().st_mode & 0o777 == 0o600
    let_go(region)


def test_workers_that_disagree_on_the_size_are_told(tmp_path):
    first = attach(tmp_path, 0)
    with pytest.raises(ConfigError) as caught:
        attach(tmp_path, 1, num_bytes=4096)
    assert str(caught.value) == (
        f"engine 'engine': worker 1 expects 4098 bytes of shared memory, but {first.path.name} has 8194: "
        "the workers hold different layers (with pipeline_parallel_size above 1 use host_memory 'private'), their "
        "configurations differ, or two engines have one id"
    )
    let_go(first)


def test_workers_that_cut_it_otherwise_are_told(tmp_path):
    """Their slots would lie over each other, though they want as many bytes."""
    first = attach(tmp_path, 0, layout=(2, 1, 2048, 2, 4096))
    with pytest.raises(ConfigError) as caught:
        attach(tmp_path, 1, layout=(1, 1, 4096, 2, 8192))
    assert str(caught.value) == (
        f"engine 'engine': worker 1 expects {first.path.name} to be laid out as [1, 1, 4096, 2, 8192] (chunks, "
        "blocks of each, bytes of a slot, slots of a row, bytes of a row), but it was created as [2, 1, 2048, "
        "2, 4096]: the "
        "workers hold different layers (with pipeline_parallel_size above 1 use host_memory 'private'), their "
        "configurations differ, or two engines have one id"
    )
    let_go(first, attach(tmp_path, 1, layout=(2, 1, 2048, 2, 4096)))
    assert names(tmp_path) == []


def test_a_folder_that_is_not_there_is_named(tmp_path):
    missing, file = tmp_path / "missing", tmp_path / "file"
    file.write_bytes(b"")
    for place, reason in ((missing, "No such file or directory"), (file, "Not a directory")):
        with pytest.raises(ConfigError) as caught:
            attach(place)
        assert str(caught.value) == f"shared_memory_dir: '{place}' can't be opened: {reason}"


def test_nothing_stays_open(tmp_path):
    before = os.listdir("/dev/fd")
    held = attach(tmp_path, 1, engine_id="other")
    among = os.listdir("/dev/fd")
    let_go(attach(tmp_path, 0), attach(tmp_path, 1))
    assert len(os.listdir("/dev/fd")) == len(among)
    let_go(held)
    assert len(os.listdir("/dev/fd")) == len(before)


class Clock:
    """Passes only while somebody sleeps."""

    def __init__(self, at_sleep=lambda passed: None):
        self.passed = 0.0
        self.at_sleep = at_sleep

    def monotonic(self):
        return 1000.0 + self.passed

    def sleep(self, seconds):
        assert 0 < seconds <= 0.1, "others wait for the folder, too"
        self.passed += seconds
        self.at_sleep(self.passed)


@pytest.fixture
def holder(tmp_path):
    """Somebody else's lock of the folder: a list of what is open, which the test may close before."""
    fds = [os.open(tmp_path, os.O_RDONLY)]
    fcntl.flock(fds[0], fcntl.LOCK_EX)
    yield fds
    for fd in fds:
        os.close(fd)


def test_a_folder_that_nobody_lets_go_of_is_given_up(tmp_path, monkeypatch, holder):
    clock = Clock()
    monkeypatch.setattr(shared_region, "time", clock)
    with pytest.raises(ConfigError) as caught:
        attach(tmp_path)
    assert str(caught.value) == f"shared_memory_dir: '{tmp_path}' has been locked for 60 s"
    assert 60 < clock.passed < 60.2
    assert names(tmp_path) == []


def test_a_folder_that_is_let_go_of_just_in_time_is_used(tmp_path, monkeypatch, holder):
    def let_go_late(passed):
        if passed > 59.8 and holder:
            os.close(holder.pop())

    monkeypatch.setattr(shared_region, "time", Clock(let_go_late))
    region = attach(tmp_path)
    assert names(tmp_path) == [region.path.name]
    let_go(region)


@pytest.mark.parametrize("refusal", [PermissionError, FileNotFoundError])
def test_a_file_that_may_not_be_opened_or_has_just_gone_is_let_be(tmp_path, monkeypatch, refusal):
    other, really = tmp_path / f"{PREFIX}left-over.mmap", os.open
    other.write_bytes(b"another user's")

    def refuse(path, *how, **more):
        if path == other:
            raise refusal
        return really(path, *how, **more)

    monkeypatch.setattr(os, "open", refuse)
    attach(tmp_path, num_ranks=1).release()
    assert names(tmp_path) == [other.name]


def test_files_of_others_are_let_be(tmp_path):
    (tmp_path / "psm_1234").write_bytes(b"mine")
    (tmp_path / f"{PREFIX}left-over.mmap").write_bytes(b"nobody's")
    region = attach(tmp_path)
    assert names(tmp_path) == sorted([region.path.name, "psm_1234"])
    let_go(region)


def run_child(folder, rank, fatal):
    command = [sys.executable, "-c", CHILD, str(folder), str(rank), str(fatal)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.once
@pytest.mark.parametrize("others", [0, 1])
def test_a_process_killed_at_any_moment_leaves_nothing_that_the_next_start_keeps(tmp_path, others):
    """Kills a worker at each of its steps in turn, while its peer is attached or isn't."""
    total = int(run_child(tmp_path, 0, 0).stdout)
    assert total >= 8
    left = []
    for fatal in range(1, total + 1):
        peers = [attach(tmp_path, 1)] if others else []
        killed = run_child(tmp_path, 0, fatal)
        assert killed.returncode in (-signal.SIGKILL, 0), killed.stderr
        let_go(*peers)
        left += names(tmp_path)
        # The next start, of another engine: it may use the folder, and finds it as if nothing had happened.
        let_go(attach(tmp_path, engine_id="next"))
        assert names(tmp_path) == [], f"killed at step {fatal} of {total}"
        let_go(attach(tmp_path, 0), attach(tmp_path, 1))
    # With a peer alive, it removes the file itself. Without, some moments do leave one for the next start.
    assert bool(left) is not bool(others)


def test_a_file_in_use_is_not_swept_by_another_start(tmp_path):
    region = attach(tmp_path, 0)
    other = attach(tmp_path, 0, engine_id="other")
    assert names(tmp_path) == sorted([region.path.name, other.path.name])
    second = attach(tmp_path, 1)
    region.map[0] = 9
    assert second.map[0] == 9
    let_go(region, second, other)
    assert names(tmp_path) == []


def test_what_is_free_is_the_file_systems(tmp_path):
    free = SharedRegion.free_bytes(tmp_path)
    assert free.num_bytes > 0
    assert free.limit == f"free in shared_memory_dir '{tmp_path}'"


def test_what_is_free_is_what_this_user_may_still_write(monkeypatch, tmp_path):
    found = os.statvfs_result((4096, 512, 900, 800, 700, 60, 50, 40, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda folder: found)
    assert SharedRegion.free_bytes(tmp_path).num_bytes == 700 * 512


def test_a_link_with_the_files_name_is_not_followed(tmp_path):
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    (folder / _file_name("engine")).symlink_to(elsewhere)
    with pytest.raises(FileExistsError):
        attach(folder)
    assert not elsewhere.exists()


def test_names_are_readable():
    known = {"dp-0": "dp-0", "a/b c": "a_b_c", "x" * 65: "x" * 64, "": ""}
    for engine_id, readable in known.items():
        name, digest = _file_name(engine_id).rsplit("-", 1)
        assert (name, len(digest)) == (f"kv-offload-cpu-{readable}", len("0123456789ab.mmap"))
    assert Path(_file_name("a/../b")).name == _file_name("a/../b")
