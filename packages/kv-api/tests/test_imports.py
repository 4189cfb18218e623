"""Importing kv_api costs a known set of standard-library modules, and nothing else."""

import json
import subprocess
import sys

# All that `dataclasses`, `enum`, `typing`, `contextlib`, `array` and `warnings` pull in, on 3.11 to 3.13.
KNOWN = {
    "_ast", "_collections", "_functools", "_opcode", "_opcode_metadata", "_operator", "_sre", "_tokenize",
    "_typing", "_weakrefset", "annotationlib", "array", "ast", "collections", "contextlib", "copy", "copyreg",
    "dataclasses", "dis", "enum", "functools", "importlib", "inspect", "itertools", "keyword", "linecache",
    "opcode", "operator", "re", "reprlib", "token", "tokenize", "types", "typing", "warnings", "weakref",
}  # fmt: skip

SCRIPT = """
import sys
before = set(sys.modules)
import kv_api
import json
print(json.dumps(sorted(name for name in set(sys.modules) - before)))
"""


def modules_after_import() -> set[str]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    return {name for name in json.loads(done.stdout) if not name.startswith("json")}


def test_nothing_but_known_modules_is_imported() -> None:
    added = modules_after_import()
    ours = {name for name in added if name.split(".")[0] == "kv_api"}
    assert "kv_api.connector" in ours
    others = {name.split(".")[0] for name in added - ours} - {"_json", "encodings"}
    assert others <= KNOWN, f"new imports: {sorted(others - KNOWN)}"


def test_the_table_of_the_contract_is_not_loaded_by_connectors() -> None:
    assert "kv_api.contract" not in modules_after_import()
