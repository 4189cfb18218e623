import sys
from pathlib import Path

# What both families' tests share is imported by name.
sys.path.append(str(Path(__file__).parent / "support"))
