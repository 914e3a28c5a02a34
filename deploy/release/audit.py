"""Report of pip-audit's findings: ``pip-audit --format json ... | python deploy/release/audit.py``.

The exit code is 1 if a package has a known vulnerability. A package that could not be checked is
never reported as clean; without any answer the step is reported as skipped.
"""

import json
import sys
from typing import Any


def verdict(report: dict[str, Any]) -> tuple[int, str]:
    """Exit code, and one sentence or more."""
    audited = [each for each in report["dependencies"] if "skip_reason" not in each]
    total = len(report["dependencies"])
    if not audited:
        return 0, f"pip-audit: SKIPPED, its service answered for none of {total} packages"
    found = [
        f"{each['name']} {each['version']}: {hole['id']}, "
        f"fixed in {', '.join(hole['fix_versions']) or 'no version'}"
        for each in audited
        for hole in each["vulns"]
    ]
    summary = f"pip-audit: {len(found)} known vulnerabilities in {len(audited)} of {total} packages"
    if len(audited) < total:
        summary += f"; {total - len(audited)} could not be asked about"
    return int(bool(found)), "\n".join([*found, summary])


def main() -> None:
    """Read the report from stdin."""
    text = sys.stdin.read()
    if not text.strip():
        print("pip-audit: SKIPPED, its service cannot be reached")  # noqa: T201
        return
    code, message = verdict(json.loads(text))
    print(message)  # noqa: T201
    sys.exit(code)


if __name__ == "__main__":
    main()
