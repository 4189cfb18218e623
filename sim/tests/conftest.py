import sys
from pathlib import Path

# Not a package: slow models, and broken connectors and engines that are found by name, as a user's are.
sys.path.append(str(Path(__file__).parent / "support"))
