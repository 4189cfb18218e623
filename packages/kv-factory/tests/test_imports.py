"""What importing kv_factory, and using it, loads: in a fresh interpreter."""

import json
import subprocess
import sys
from types import ModuleType

import kv_factory

# What kv_api needs, and `threading`, `contextvars` and `importlib`.
KNOWN = {
    "_ast", "_collections", "_contextvars", "_functools", "_opcode", "_opcode_metadata", "_operator",
    "_py_warnings", "_sre", "_struct", "_tokenize", "_types", "_typing", "_weakrefset", "annotationlib",
    "array", "ast", "collections", "contextlib", "contextvars", "copy", "copyreg", "dataclasses", "dis",
    "enum", "functools", "importlib", "inspect", "io", "itertools", "keyword", "linecache", "opcode",
    "operator", "re", "reprlib", "struct", "threading", "token", "tokenize", "types", "typing", "warnings",
    "weakref",
}  # fmt: skip

SCRIPT = """
import sys
before = set(sys.modules)
import kv_factory
steps = [sorted(set(sys.modules) - before)]
kv_factory.KVConnectorFactory.register_connector("A", "kv_api", "TwoSidedConnector")
kv_factory.KVConnectorFactory.get_connector_class_by_name("A")
steps.append(sorted(set(sys.modules) - before))
try:
    kv_factory.KVConnectorFactory.get_connector_class_by_name("B")
except ValueError:
    steps.append(sorted(set(sys.modules) - before))
import json
print(json.dumps(steps))
"""


def steps() -> list[set[str]]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    return [set(modules) for modules in json.loads(done.stdout)]


def test_importing_it_loads_what_it_declares_and_known_modules() -> None:
    added = steps()[0]
    assert "kv_factory.connectors" in added
    others = {name.split(".")[0] for name in added} - {"kv_factory", "kv_api"}
    assert others <= KNOWN, f"new imports: {sorted(others - KNOWN)}"
    assert "importlib.metadata" not in added
    assert "kv_factory.__main__" not in added


def test_entry_points_are_searched_only_for_a_name_that_was_not_registered() -> None:
    _, registered, unknown = steps()
    assert "importlib.metadata" not in registered
    assert "importlib.metadata" in unknown


def test_the_public_names_are_those_of_the_package() -> None:
    named = {name for name, value in vars(kv_factory).items() if not isinstance(value, ModuleType)}
    assert {*kv_factory.__all__} == {name for name in named if not name.startswith("_")}
