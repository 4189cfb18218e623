"""Takes pictures of both reports in headless Chromium: light and dark, wide and narrow. Run on request; look at
them.

    python sim/tests/browser/look_at_reports.py FOLDER [CHROMIUM]

It fails if a page asks for anything from a network, or is wider than its window.
"""

import re
import subprocess
import sys
from pathlib import Path

from kv_sim.cli.main import main

COMMANDS = {
    "size": ["size", "mooncake-synthetic", "--policy", "all", "--points", "12", "--model", "llama-3.1-8b"],
    "replay": ["replay", "mooncake-synthetic", "--policy", "lru,arc", "--gpu-capacity", "300ktokens"],
}
SCHEMES = {"light": "1", "dark": "0"}
WIDTHS = {"wide": 1200, "narrow": 390}
MEASURE = "<script>document.title = document.documentElement.scrollWidth + ' of ' + innerWidth</script></body>"


def look(folder: Path, chromium: str) -> None:
    """Write the pages and their pictures."""
    for name, command in COMMANDS.items():
        page = folder / f"{name}.html"
        if main([*command, "--html", str(page)]) != 0:
            raise SystemExit(f"{name}: the command failed")
        text = page.read_text(encoding="utf-8")
        if found := re.findall(r"(?:https?:)?//[^\s\"'<]+|@import|url\(", text):
            raise SystemExit(f"{page}: it needs a network: {found}")
        measured = folder / f"{name}-measured.html"
        measured.write_text(text.replace("</body>", MEASURE), encoding="utf-8")
        for scheme, number in SCHEMES.items():
            for width, pixels in WIDTHS.items():
                start = [
                    chromium,
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    f"--window-size={pixels},2600",
                    f"--blink-settings=preferredColorScheme={number}",
                ]
                picture = folder / f"{name}-{scheme}-{width}.png"
                shoot = [*start, f"--screenshot={picture}", page.resolve().as_uri()]
                subprocess.run(shoot, check=True, capture_output=True)
                dump = [*start, "--dump-dom", measured.resolve().as_uri()]
                shown = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
                title = re.search(r"<title>(\d+) of (\d+)", shown)
                if title is None or int(title[1]) > int(title[2]):
                    raise SystemExit(f"{picture.name}: the page is wider than its window: {title and title[0]}")
                print(picture)


if __name__ == "__main__":
    look(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "chromium")
