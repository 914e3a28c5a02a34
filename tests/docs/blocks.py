"""Code blocks of the documents: each is run, run elsewhere, or says what it needs.

tests/app/test_examples.py runs every block, except those with a comment directly above:

    <!-- run by: tests/app/test_api_doc.py -->     the file of the test that runs it
    <!-- needs: docker -->                         not run: a key of NEEDS says what is missing

A comment with ``all`` stands for the whole document: ``<!-- all needs: k8s -->``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "deploy").glob("*/README.md")),
    *sorted((ROOT / "benchmarks" / "results").glob("*.md")),
)
NEEDS: Final = {
    "docker": "a container engine",
    "k8s": "a Kubernetes cluster",
    "ray": "a Ray cluster of several machines",
    "gpu": "a GPU",
    "environment": "an environment of one's own, into which packages are installed",
    "hub": "a model hub, for an encoder's weights",
    "index": "another package index than the usual one",
    "records": "recorded answers of real models, which are not in the repository",
    "hours": "a machine that does nothing else, for minutes to hours",
}
_BLOCK: Final = re.compile(
    r"(?:^(?P<tag>[ ]*<!-- [^\n]* -->)\n)?"
    r"^(?P<indent>[ ]*)```(?P<kind>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
_TAG: Final = re.compile(r"<!-- (?P<how>run by|needs): (?P<what>\S+) -->")
_ALL: Final = re.compile(r"<!-- all (?P<how>run by|needs): (?P<what>\S+) -->")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced code block.

    Attributes:
        run_by: The file of the test that runs it, if not tests/app/test_examples.py.
        needs: The key of ``NEEDS`` that says why no test runs it.
    """

    document: Path
    line: int
    kind: str
    text: str
    run_by: str | None = None
    needs: str | None = None

    @property
    def place(self) -> str:
        """The document and the line."""
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(documents: tuple[Path, ...] = DOCUMENTS) -> list[Block]:
    """Every block of the documents, in their order."""
    return [block for document in documents for block in _blocks(document)]


def _blocks(document: Path) -> Iterator[Block]:
    text = document.read_text(encoding="utf-8")
    whole_page = _ALL.search(text)
    for found in _BLOCK.finditer(text):
        tag = _TAG.search(found["tag"] or "") or whole_page
        tags = {"run by": None, "needs": None} | ({tag["how"]: tag["what"]} if tag else {})
        indent = len(found["indent"])
        yield Block(
            document=document,
            line=text.count("\n", 0, found.start("kind")) + 1,
            kind=found["kind"],
            text="".join(line[indent:] for line in found["text"].splitlines(keepends=True)),
            run_by=tags["run by"],
            needs=tags["needs"],
        )
