"""Runner of docs/tutorial.md: its blocks as one program, with the output of each.

python -m tests.docs.tutorial     writes the outputs and the picture anew
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "tutorial.md"
PICTURE: Final = Path("docs/figures/tutorial.png")
_MARK: Final = "\N{END OF TEXT}"
_BLOCK: Final = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)


def blocks(text: str) -> list[tuple[str, str]]:
    """The blocks of Python, each with the output that the page shows."""
    return _BLOCK.findall(text)


def outputs(text: str, folder: Path) -> list[str]:
    """Run the blocks as one program in a folder, and return what each prints."""
    program = f"print(end={_MARK!r})\n".join(code for code, _ in blocks(text))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(_MARK)


def written(text: str, printed: list[str]) -> str:
    """The page with these outputs."""
    found = iter(printed)

    def block(match: re.Match[str]) -> str:
        output = next(found)
        shown = f"\n```text\n{output}```\n" if output else ""
        return f"```python\n{match[1]}```\n{shown}"

    return _BLOCK.sub(block, text)


def main() -> None:
    """Write the outputs into the page, and the picture beside it."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(written(text, outputs(text, ROOT)), encoding="utf-8")


if __name__ == "__main__":
    main()
