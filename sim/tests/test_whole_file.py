"""What is written is there as a whole or not at all; what was there before stays until then."""

import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kv_sim_devices import device

from kv_sim.config import WorldConfig
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.failures.schedule_file import Schedule, write_schedule
from kv_sim.watching.perfetto import Perfetto
from kv_sim.watching.watch import NotWritten, WatchedWorld
from kv_sim.whole_file import whole_file

FULL = "File too large"


@contextmanager
def little_room() -> Iterator[None]:
    """A disk with room for 64 bytes of a file; also of that which pytest prints into, so not for long."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write(place: Path, data: bytes = b"new") -> None:
    with whole_file(place) as file:
        file.write(data)


def mode_of(place: Path) -> int:
    return stat.S_IMODE(place.stat().st_mode)


def test_a_new_file_is_one_that_open_would_have_made(tmp_path: Path) -> None:
    write(tmp_path / "a")
    (tmp_path / "b").write_bytes(b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert mode_of(tmp_path / "a") == mode_of(tmp_path / "b")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "a", tmp_path / "b"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o777])
def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    place = tmp_path / "a"
    place.write_bytes(b"a longer one")
    place.chmod(mode)
    write(place)
    assert (place.read_bytes(), mode_of(place)) == (b"new", mode)


def test_a_system_without_owners_keeps_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "chown")
    test_a_file_that_is_there_keeps_its_mode(tmp_path, 0o640)


def test_a_link_stays_one(tmp_path: Path) -> None:
    for name in ("there", "to come"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        target, link = tmp_path / "folder" / name, tmp_path / name
        if name == "there":
            target.write_bytes(b"old")
        link.symlink_to(target)
        write(link)
        assert link.is_symlink() and target.read_bytes() == b"new"


@pytest.mark.parametrize("data", [b"x" * 65, b"x" * 100_000])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, data: bytes) -> None:
    """Whether the disk is found full while it is written, or when it is closed."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"old")
    for place in (old, new):
        with little_room(), pytest.raises(OSError, match=FULL):
            write(place, data)
    assert old.read_bytes() == b"old" and [*tmp_path.iterdir()] == [old]


def test_so_does_whatever_else_ends_it(tmp_path: Path) -> None:
    place = tmp_path / "a"
    place.write_bytes(b"old")

    def stop() -> None:
        with whole_file(place) as file:
            file.write(b"new")
            file.flush()
            assert len([*tmp_path.iterdir()]) == 2, "it lies beside the other"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert place.read_bytes() == b"old" and [*tmp_path.iterdir()] == [place]


def test_a_device_and_a_pipe_are_written_directly(tmp_path: Path) -> None:
    nowhere = device("null", tmp_path)
    write(nowhere)
    assert nowhere.is_char_device()
    with pytest.raises(OSError, match="No space left on device"):
        write(device("full", tmp_path))
    reading, writing = os.pipe()
    write(Path(f"/dev/fd/{writing}"))
    assert os.read(reading, 99) == b"new"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    opened = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write(pipe)
    assert os.read(opened, 99) == b"new" and pipe.is_fifo()
    for number in (reading, writing, opened):
        os.close(number)


def test_a_file_without_a_name_is_written_directly(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w+b") as file:
        (tmp_path / "a").unlink()
        write(Path(f"/dev/fd/{file.fileno()}"))
        assert file.read() == b"new" and not [*tmp_path.iterdir()]


def test_where_this_process_prints_is_written_directly(tmp_path: Path) -> None:
    """Else what it prints later would be in a file that nobody finds."""
    program = (
        "from pathlib import Path\nfrom kv_sim.whole_file import whole_file\n"
        "with whole_file(Path('/dev/stdout')) as file:\n    file.write(b'new\\n')\nprint('later')"
    )
    with (tmp_path / "a").open("ab") as file:
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True, timeout=60)
    assert (tmp_path / "a").read_text() == "new\nlater\n"


def test_a_closed_stream_is_none(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from kv_sim.whole_file import whole_file\n"
        "with whole_file(Path(sys.argv[1])) as file:\n    file.write(b'new')"
    )
    (tmp_path / "a").write_bytes(b"old")
    command = [sys.executable, "-c", program, str(tmp_path / "a")]
    subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *command], check=True, timeout=60)
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("closed", "lacks"),
    [("file", os.W_OK), ("folder", os.W_OK), ("folder", os.X_OK)],
    ids=["file", "folder", "within"],
)
def test_what_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str, lacks: int) -> None:
    """A file that may is written where its folder may not, as ever; one that may not isn't replaced either."""
    place = tmp_path / "a"
    place.write_bytes(b"old")
    inode = place.stat().st_ino
    closed_place = place if closed == "file" else tmp_path
    monkeypatch.setattr(os, "access", lambda asked, mode: Path(asked) != closed_place or not mode & lacks)
    write(place)  # who runs this may do everything, so that opening it is refused by nobody
    assert place.stat().st_ino == inode and place.read_bytes() == b"new"


def test_a_trace_of_a_history_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    place = tmp_path / "trace.json"
    place.write_text("old")
    perfetto = Perfetto(place)
    world = WatchedWorld(WorldConfig(), SUBJECTS["later"], watchers=[perfetto])
    with little_room(), pytest.raises(NotWritten, match=f"trace.json: the trace was not written: {FULL}"):
        world.break_off(None)
    assert place.read_text() == "old" and [*tmp_path.iterdir()] == [place]


def test_of_a_schedule_that_does_not_fit_nothing_is_left(tmp_path: Path) -> None:
    with little_room(), pytest.raises(OSError, match=FULL):
        write_schedule(Schedule(SUBJECTS["later"], WorldConfig(), []), tmp_path, "s")
    assert [*tmp_path.iterdir()] == []
