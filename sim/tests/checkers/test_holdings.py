"""What is read of a machine's processes and of its shared memory, from folders as Linux has them."""

import os
from pathlib import Path

import pytest

from kv_sim.checkers import left_open
from kv_sim.checkers.left_open import Holdings

MAPPED = "7f00-7f01 rw-s 00000000 00:19 3                      "


class Machine:
    """Processes, and segments of shared memory, each with its inode."""

    def __init__(self, folder: Path) -> None:
        self.processes, self.memory = folder / "proc", folder / "shm"
        self.processes.mkdir()
        self.memory.mkdir()
        (self.processes / "meminfo").touch()

    def runs(self, number: int, *, state: str = "S", name: str | None = None) -> Path:
        made = self.processes / str(number)
        (made / "fd").mkdir(parents=True)
        (made / "maps").write_text("7f00-7f01 r--p 00000000 00:00 0\n")
        (made / "stat").write_text(f"{number} (a) b) {state} 1 1\n")
        if name is not None:
            (made / "comm").write_text(f"{name}\n")
        return made

    def maps(self, process: Path, name: str) -> None:
        (self.memory / name).touch()
        with (process / "maps").open("a") as file:
            file.write(f"{MAPPED}{self.memory / name}\n")

    def opens(self, process: Path, name: str) -> None:
        (self.memory / name).touch()
        number = len(os.listdir(process / "fd"))
        (process / "fd" / str(number)).symlink_to(self.memory / name)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(left_open, "PROCESSES", made.processes)
    monkeypatch.setattr(left_open, "SHARED_MEMORY", made.memory)
    return made


def holdings(*children: int, segments: tuple[str, ...] = ()) -> Holdings:
    return Holdings(frozenset(), frozenset(children), frozenset((name, 1) for name in segments))


def test_children_that_go_on_are_named_and_told_in_order(machine: Machine) -> None:
    machine.runs(65, name="sleep")  # that of a set which comes first
    machine.runs(7, name="tail")
    machine.runs(12, state="R")
    machine.runs(8, state="Z", name="ended")
    machine.runs(9, state="X", name="gone")
    now = holdings(65, 12, 7, 8, 9, 10)
    assert now.children_since(holdings()) == [7, 12, 65]
    assert now.children_since(holdings(7, 40)) == [12, 65]
    assert dict(now.since(holdings())) == {"process sleep": 1, "process tail": 1, "process …": 1}


@pytest.mark.parametrize("how", ["maps", "opens"])
def test_segments_are_this_processes_if_it_alone_has_them(machine: Machine, how: str) -> None:
    mine, others = machine.runs(os.getpid()), [9_999_990 + number for number in range(8)]
    has, theirs = getattr(machine, how), tuple(f"of {number}" for number in others)
    for name in ("mine", *theirs, "old"):
        has(mine, name)
    for number, name in zip(others, theirs, strict=True):
        has(machine.runs(number), name)
    has(machine.processes / str(others[0]), "its own")
    (machine.memory / "nobody's").touch()
    segments = ("mine", *theirs, "old", "its own", "nobody's", "gone")
    now, before = holdings(segments=segments), holdings(segments=("old",))
    assert now.segments_since(before) == {("mine", 1)}
    assert now.segments_since(now) == set()


def test_each_way_to_have_a_segment_counts(machine: Machine) -> None:
    mine, other = machine.runs(os.getpid()), machine.runs(1)
    for number in range(50, 58):
        (mine / "fd" / str(number)).touch()  # no link: that one is closed by now
    machine.opens(mine, "a")
    machine.opens(mine, "b")
    machine.maps(mine, "c")
    machine.maps(mine, "d")
    now = holdings(segments=("a", "b", "c", "d"))
    assert {name for name, _ in now.segments_since(holdings())} == {"a", "b", "c", "d"}
    machine.maps(other, "a")
    machine.opens(other, "d")
    assert {name for name, _ in now.segments_since(holdings())} == {"b", "c"}


def test_a_path_that_is_no_text_is_another(machine: Machine) -> None:
    mine = machine.runs(os.getpid())
    with (mine / "maps").open("ab") as file:
        file.write(b"7f00-7f01 r--p 00000000 00:19 3 /tmp/\xff\n")
    machine.maps(mine, "a")
    assert holdings(segments=("a",)).segments_since(holdings()) == {("a", 1)}


def test_who_may_not_be_looked_at_has_nothing(machine: Machine) -> None:
    mine, other = machine.runs(os.getpid()), machine.runs(1)
    machine.maps(mine, "a")
    for path in (other / "maps", other / "fd"):
        path.rename(path.with_suffix(".hidden"))
    assert holdings(segments=("a",)).segments_since(holdings()) == {("a", 1)}


def test_nobody_is_looked_at_without_need(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are many processes: none where no segment came up, only this one where it has none of those."""
    mine, looked, look = machine.runs(os.getpid()), list[int](), left_open._held_by
    (machine.memory / "a").touch()
    machine.runs(1)
    monkeypatch.setattr(left_open, "_held_by", lambda process, of: looked.append(process) or look(process, of))
    for before, expected in ((holdings(segments=("a",)), []), (holdings(), [os.getpid()])):
        assert holdings(segments=("a",)).segments_since(before) == set()
        assert looked == expected
    machine.maps(mine, "a")
    assert holdings(segments=("a",)).segments_since(holdings()) == {("a", 1)}
    assert looked[1:] == [os.getpid(), 1]


def test_shared_memory_of_other_users_is_not_ours(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.maps(machine.runs(os.getpid()), "a")
    now = Holdings.now()
    assert {name for name, _ in now.segments_since(holdings())} == {"a"}
    monkeypatch.setattr(os, "geteuid", lambda: (machine.memory / "a").stat().st_uid + 1)
    assert now.segments_since(holdings()) == set()


def test_of_shared_memory_that_was_there_before_only_the_names_are_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others left may be thousands of segments, and every history has a look."""
    for number in range(8):
        (machine.memory / f"{number}").touch()
    looked = list[str]()
    monkeypatch.setattr(left_open, "_is_ours", lambda segment: looked.append(segment[0]))
    before = Holdings.now()
    machine.maps(machine.runs(os.getpid()), "new")
    Holdings.now().segments_since(before)
    assert looked == ["new"]


def test_shared_memory_is_listed_by_name_and_number(machine: Machine) -> None:
    for name in ("a", "b"):
        (machine.memory / name).touch()
    (machine.memory / "a link").symlink_to("nowhere")
    found = Holdings.now().segments
    assert found == {(name, (machine.memory / name).lstat().st_ino) for name in ("a", "b", "a link")}
    assert dict(Holdings.now().since(Holdings.now(), found)) == {
        str(machine.memory / name): 1 for name in ("a", "b", "a link")
    }


def test_what_has_a_number_of_this_run_is_told_without_it_and_a_path_as_it_is() -> None:
    opened = frozenset({(3, "/tmp/log [12]"), (4, "pipe:[7]"), (5, "pipe:[8]"), (6, "anon_inode:[eventfd]")})
    now = Holdings(opened, frozenset(), frozenset())
    assert dict(now.since(holdings())) == {"/tmp/log [12]": 1, "pipe:[…]": 2, "anon_inode:[eventfd]": 1}


def test_children_are_those_of_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        (tmp_path / f"{number}").mkdir()
        if number % 2:  # of the others the thread has ended meanwhile
            (tmp_path / f"{number}" / "children").write_text(f"{number}1 {number}2 ")
    monkeypatch.setattr(left_open, "TASKS", tmp_path)
    assert Holdings.now().children == {11, 12, 31, 32, 51, 52, 71, 72}
