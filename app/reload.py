"""Reload: a running gateway takes over a changed configuration, the whole of it or nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from app.errors import ReloadRefused, SettingsError
from app.settings import Secrets, Settings
from app.settings.reloading import Place, differences, is_reloaded

log = logging.getLogger(__name__)

Load = Callable[[], tuple[Settings, Secrets]]
Follower = Callable[[Settings, Secrets], None]


class Reload:
    """Reads the configuration again, and hands it to what follows it.

    A request goes on under the configuration that it began under. Only settings of
    ``settings.reloading`` may differ, so that a reload does what a restart would do.

    Args:
        settings: The configuration of the start.
        load: Reads the configuration again, on a thread; None: it cannot be read again.

    Attributes:
        settings: The configuration in force.
    """

    def __init__(self, settings: Settings, load: Load | None = None) -> None:
        self.settings = settings
        self._load = load
        self._followers: list[Follower] = []
        self._one_at_a_time = asyncio.Lock()

    def subscribe(self, follower: Follower) -> None:
        """Call ``follower`` with each later configuration. It must not block and must not fail."""
        self._followers.append(follower)

    async def __call__(self) -> list[str]:
        """Take over what the configuration says now; return the settings that changed.

        Raises:
            ReloadRefused: It is not valid, a changed setting needs a restart, or it has no data key
                any more. Nothing changed.
        """
        if self._load is None:
            raise ReloadRefused("this gateway cannot read its configuration again: restart it")
        async with self._one_at_a_time:
            try:
                settings, secrets = await asyncio.to_thread(self._load)
            except SettingsError as exc:
                raise ReloadRefused(f"{exc}. Nothing was changed") from exc
            changed = differences(self.settings, settings)
            if fixed := [place for place in changed if not is_reloaded(place)]:
                raise ReloadRefused(
                    f"{_listed(fixed)}: cannot be changed without a restart. Nothing was changed: "
                    "restart the gateway, or reload without this change"
                )
            if _has_data_key(self.settings) and not _has_data_key(settings, secrets):
                raise ReloadRefused(
                    "access.keys: without a data key the gateway would accept every request that "
                    "reaches it, so a reload keeps the last one. Nothing was changed: add another "
                    "data key, or restart the gateway"
                )
            if changed:
                for follower in self._followers:  # without a pause: no request sees half of it
                    follower(settings, secrets)
                self.settings = settings  # last: where a follower fails, the next reload repeats it
        log.warning("the configuration was reloaded; changed: %s", _listed(changed) or "nothing")
        return [".".join(place) for place in changed]


def _has_data_key(settings: Settings, secrets: Secrets | None = None) -> bool:
    has_of_environment = secrets is not None and secrets.data_key is not None
    return has_of_environment or any(key.role == "data" for key in settings.access.keys)


def _listed(places: list[Place]) -> str:
    return ", ".join(".".join(place) for place in places)
