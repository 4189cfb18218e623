import sys
from pathlib import Path

# Not a package: what is there is imported by name.
sys.path.append(str(Path(__file__).parent / "support"))
