"""Canary: a calibration that decides a share of the requests beside the active one.

Which requests it decides follows from a keyed hash of the request's session or, without one, of its
decision's id. So the turns of a session stay together, all gateways of a store agree, a larger
share keeps the sessions of a smaller one, and the draw looks neither at the query nor at anything
that depends on it. The requests of each of the two calibrations are then drawn like all requests:
the certificate of each decision is that of the calibration that it names, as if this one were the
only one.

A client sees in the certificate which calibration decides its session. If it goes on with the
sessions of one of the two alone, it chooses its calibration, and by what it has seen before: its
requests are then no longer drawn like the rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from app.store.calibration_record import CalibrationRecord

_BITS: Final = 53  # of a double in [0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A calibration and its share.

    Attributes:
        record: The calibration.
        share: Of the requests, in (0, 1).
        key: Secret of the draw, which the store keeps: from a name, no client can tell which
            calibration will decide its session.
    """

    record: CalibrationRecord
    share: float
    key: bytes

    def decides(self, drawn_by: str) -> bool:
        """Whether it decides a request; a draw of its own, whatever the shadow sample draws.

        Args:
            drawn_by: The request's session, with its caller, or the id of its decision.
        """
        seed = hashlib.blake2b(self.key + self.record.id.encode(), digest_size=32).digest()
        digest = hashlib.blake2b(drawn_by.encode(), key=seed, person=b"canary", digest_size=8)
        number = int.from_bytes(digest.digest()) >> (64 - _BITS)
        return number * 2.0**-_BITS < self.share
