"""Classes of answers under an equality that is not transitive, such as likeness of meaning.

Along an order an answer gets the class of the first earlier answer that it equals, else a new one.
So the classes of a prefix do not depend on what follows: a sequence forms them after every round,
and a vote, along the router scores, while answers are outstanding. Clustering all answers that
happen to be there would change them with every arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from racer_core.types import BoolArray

ClassArray = NDArray[np.int16]
UNREADABLE = -1


def led_classes(
    equal: BoolArray, readable: BoolArray, order: NDArray[Any] | Sequence[int]
) -> ClassArray:
    """The class of every answer, shape (n, K); -1 for an unreadable one.

    :func:`led_forms` is the same for one row.

    Args:
        equal: Whether two answers of a row are equal, shape (n, K, K).
        readable: Whether an answer can be read, shape (n, K).
        order: All columns in the order of calls, shape (K,), or one for each row, shape (n, K).
    """
    rows = np.arange(len(readable))
    order = np.broadcast_to(np.asarray(order, dtype=np.intp), readable.shape)
    alike = equal & readable[:, :, None] & readable[:, None, :]
    alike = alike[rows[:, None, None], order[:, :, None], order[:, None, :]]
    led = np.empty(readable.shape, dtype=np.int16)
    for place in range(readable.shape[1]):
        led[:, place] = place
        if place:
            earlier = alike[:, place, :place]
            first = led[rows, earlier.argmax(axis=1)]
            led[:, place] = np.where(earlier.any(axis=1), first, place)
    classes = np.empty_like(led)
    np.put_along_axis(classes, order, led, axis=1)
    return np.where(readable, classes, np.int16(UNREADABLE))


def led_forms(
    forms: Mapping[str, str | None], equals: Callable[[str, str], bool]
) -> dict[str, str | None]:
    """Each candidate's form, replaced by that of its class.

    Args:
        forms: The form of each answer, in the order of calls; None: it cannot be read.
        equals: Whether two forms are equal.
    """
    led: dict[str, str | None] = {}
    for name, form in forms.items():
        led[name] = form
        if form is None:
            continue
        for earlier, found in led.items():
            other = forms[earlier]
            if earlier != name and other is not None and equals(form, other):
                led[name] = found
                break
    return led
