"""Folders in memory, for tests that commit thousands of times: a store synchronises each."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")  # a file system in memory, on Linux
MEMORY_BYTES: Final = 2**30  # what must be free there; the tests take a tenth of it


def is_usable(folder: Path = MEMORY) -> bool:
    """Whether a folder is there, has room, and lets its programs run."""
    if not os.access(folder, os.W_OK):
        return False
    runs_programs = not os.statvfs(folder).f_flag & os.ST_NOEXEC
    return runs_programs and shutil.disk_usage(folder).free >= MEMORY_BYTES
