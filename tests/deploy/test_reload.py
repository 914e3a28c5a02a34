"""A pod takes over a changed ConfigMap, which the kubelet swaps as a folder of links."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.deploy import plain
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, running


def write(folder: Path, text: str, version: str) -> None:
    """What the kubelet does: a new folder, a link that changes its end, the old folder gone."""
    old = (folder / "..data").resolve() if (folder / "..data").exists() else None
    (folder / version).mkdir(parents=True)
    (folder / version / "racer.yaml").write_text(text, encoding="utf-8")
    (folder / "..new").symlink_to(version)
    (folder / "..new").replace(folder / "..data")
    file = folder / "racer.yaml"
    if old is None:
        file.symlink_to("..data/racer.yaml")
    else:
        shutil.rmtree(old)


def test_a_changed_configmap_is_reloaded(tmp_path: Path) -> None:
    """Red when the configuration of the start is found by where the link led then."""
    text = (plain.FOLDER / "racer.yaml").read_text(encoding="utf-8")
    text = text.replace("/etc/racer/", f"{tmp_path}/").replace("/var/lib/racer/", f"{tmp_path}/")
    text = text.replace("drain_delay_s: 10", "drain_delay_s: 0") + "\nport: 0\n"
    folder = tmp_path / "config"
    write(folder, text, "..one")
    environment = {plain.DATA: DATA_KEY, plain.ADMIN: ADMIN_KEY}
    environment |= {plain.STORE: f"sqlite:///{tmp_path}/shared.db"}
    with running(folder / "racer.yaml", environment) as gateway:
        write(folder, text.replace("timeout_s: 60", "timeout_s: 50"), "..two")
        done = gateway.post("/admin/reload", ADMIN_KEY)
        assert done.status_code == 200, done.text
        assert "timeout_s" in str(done.json())
        write(folder, text.replace("alpha: 0.1", "alhpa: 0.1"), "..three")
        refused = gateway.post("/admin/reload", ADMIN_KEY)
        assert refused.status_code == 409, refused.text
