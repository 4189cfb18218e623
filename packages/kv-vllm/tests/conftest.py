import sys
from pathlib import Path

# Not a package: the classes there must be importable by name.
sys.path.append(str(Path(__file__).parent / "support"))
