"""The store, a SQLite or PostgreSQL database; knows no routing and no HTTP.

SQLite is the default; several gateways share one PostgreSQL. ``tables.py`` holds the tables,
``schema.py`` their version and migrations, ``engine.py`` connections, transactions and errors,
``calibrations.py`` calibrations and which are active, ``calibration_rows.py`` how their rows are
written and read, ``answer_calibrations.py`` those of `same_answer`, ``canaries.py`` which one
decides a share of the requests, ``store_keys.py`` the store's own keys, ``notifications.py``
LISTEN/NOTIFY, and ``backup`` backups. ``app/monitoring`` reads and writes decisions and alarms,
``app/access/lease_store.py`` the leases of limits.
"""

from app.store.calibration_rows import Summary
from app.store.calibrations import SharedState, Store
from app.store.canaries import Alarms, StoredCanary
from app.store.store_keys import KeyPurpose
from app.utc import now

__all__ = [
    "Alarms",
    "KeyPurpose",
    "SharedState",
    "Store",
    "StoredCanary",
    "Summary",
    "now",
]
