"""Check of the sample of live traffic: whether it is drawn, and which command comes next."""

from __future__ import annotations

from typing import Final

from app.settings import Settings
from app.settings.secrets import SAMPLES_KEY
from app.store.inspection import StoreInspection
from app.tools.doctor.finding import Finding, ok, warning

CHECK = "sampling"
TRAIN: Final = (
    "run `racer samples rows.jsonl`, `racer split rows.jsonl` and `racer train`; a running gateway "
    "loads the artifact"
)
LABEL: Final = (
    "label them: an application's `checker`, the page's tab Label, or `racer label --from-shadow`"
)
CALIBRATE: Final = "run `racer calibrate --from-shadow`"


def check(settings: Settings, found: StoreInspection, *, has_artifact: bool) -> Finding:
    """Say what is sampled, and what is missing on the way to a calibration from it.

    Args:
        settings: The configuration. With stored requests it is not read without their key.
        found: What the store holds.
        has_artifact: Whether a router was trained.
    """
    if not settings.samples_traffic:
        return ok(CHECK, "off: `watching.shadow_rate` draws rows from live traffic")
    labelled = found.sampled - found.unlabelled
    summary = (
        f"on, requests stored by ${SAMPLES_KEY}"
        if settings.watching.store_requests
        else "on, requests not stored"
    )
    summary += f"; {found.sampled} sampled, {found.unlabelled} wait for a label"
    if not has_artifact and not settings.watching.store_requests:
        cure = "set `watching.store_requests: true`: rows without requests train no router"
        return warning(CHECK, summary, cure)
    if found.active is not None or not found.sampled:
        return ok(CHECK, summary)
    if not labelled:
        return warning(CHECK, summary, LABEL)
    return warning(CHECK, summary, CALIBRATE if has_artifact else TRAIN)
