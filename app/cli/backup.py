"""``racer backup`` and ``racer restore``: calibrations and key hashes as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app import settings
from app.cli import tables
from app.cli.console import CONFIG, FILE, JSON, out, print_json
from app.errors import SettingsError, StoreDamaged
from racer_core.errors import InputError

if TYPE_CHECKING:
    from app.settings import Settings
    from app.store import Store


@click.command()
@click.argument("file", type=FILE)
@CONFIG
@click.option(
    "--active",
    is_flag=True,
    help="Only the calibration that is active for the configured artifact, as an artifact carries "
    "it: FILE is its `calibration.zip`.",
)
@JSON
def backup(file: Path, config: Path, active: bool, as_json: bool) -> None:
    """Back up calibrations, drift alarms and key hashes to FILE; gateways may keep running.

    The backup holds no secrets and no decisions. An existing FILE is replaced at the end.
    """
    from app.store import Store, engine, inspection
    from app.store.backup import calibrations

    configured, secrets = settings.load(config)
    url = secrets.store(configured)
    if inspection.read_only(url) is None:  # an empty backup would pass for a good one
        raise SettingsError(
            f"store {engine.redacted_url(url)} does not exist: check `store` in {config}, or "
            f"${configured.store_env}"
        )
    with Store(url) as store:
        if active:
            _show({"file": str(file)} | _save_active(configured, store, file), as_json)
            return
        saved = calibrations.save(store, configured.access.keys, file)
    _show({"file": str(file), **saved.manifest.counts.model_dump()}, as_json)
    if saved.damaged:
        raise StoreDamaged(
            f"{', '.join(saved.damaged)}: damaged in the store (the digests do not match) and left "
            "out of the backup, which holds all the others"
        )


def _save_active(configured: Settings, store: Store, file: Path) -> dict[str, Any]:
    """Save what the configured artifact would carry. Raises InputError if none is active."""
    from app.calibrations.service import setup_digest
    from app.routing.artifact_files import open_trained
    from app.store.backup.calibrations import save_carried

    artifact = open_trained(configured).artifact
    setup = setup_digest(artifact.digest, configured.candidates)
    active_id = store.shared_state(setup).active_id
    if active_id is None:
        raise InputError(
            f"no calibration is active for the artifact {configured.artifact} and these candidates"
        )
    save_carried(store, setup, file)
    return {"calibration": active_id}


@click.command()
@click.argument("file", type=FILE)
@CONFIG
@click.option(
    "--activate",
    is_flag=True,
    help="Activate what was active at the time of the backup, even over another calibration.",
)
@click.option(
    "--keys", "with_keys", is_flag=True, help="Add the missing keys to the file of --config."
)
@JSON
def restore(file: Path, config: Path, activate: bool, with_keys: bool, as_json: bool) -> None:
    """Add the calibrations of the backup FILE that the store lacks, all or none."""
    from app.store import Store
    from app.store.backup import calibrations
    from app.store.backup.file import Backup
    from app.tools.configured_keys import adding_keys, lacking_keys

    configured, secrets = settings.load(config)
    configured_keys = configured.access.keys
    with Backup(file) as opened:
        lacking = lacking_keys(opened.manifest.keys, configured_keys)
        change = adding_keys(config, lacking, configured_keys) if with_keys and lacking else None
        with Store(secrets.store(configured)) as store:
            restored = calibrations.restore(store, opened, activate=activate)
    if change is not None:
        change.write()
    shown = {
        "file": str(file),
        "added": len(restored.added),
        "there already": len(restored.there),
        "activated": restored.activated,
        "not activated": restored.left,
        "keys added" if with_keys else "keys lacking": [key.name for key in lacking],
    }
    _show(shown, as_json)


def _show(result: dict[str, Any], as_json: bool) -> None:
    print_json(result) if as_json else out.print(tables.fields(result))
