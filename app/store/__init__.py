"""What is kept: SQLite by default, PostgreSQL by URL when several gateways share it.

``tables.py`` says what, ``schema.py`` in which version, ``engine.py`` how it is opened and what can
go wrong; ``calibrations.py`` reads and writes calibrations, ``notifications.py`` rings when
something changed. Decisions and alarms are read and written in ``app/monitoring``, shares of
keys' limits in ``app/access/quota_leases.py``.
"""

from app.store.calibrations import Pulse, Store, Summary
from app.store.engine import now

__all__ = ["Pulse", "Store", "Summary", "now"]
