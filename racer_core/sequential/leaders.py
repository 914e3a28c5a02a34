"""Classes of answers under an equality that is not transitive, such as likeness of meaning.

Along an order an answer gets the class of the first earlier answer that it equals, else a new one.
So the classes of a prefix do not depend on what follows: a sequence may form them after every
round. Clustering all answers that happen to be there would change them from round to round, and
with the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from racer_core.aggregation.batch import ClassArray
from racer_core.types import BoolArray

_UNREADABLE: Final = -1


def led_classes(equal: BoolArray, readable: BoolArray, columns: Sequence[int]) -> ClassArray:
    """The class of every answer, shape (n, K); -1 for an unreadable one.

    :func:`led_forms` is the same for one row.

    Args:
        equal: Whether two answers of a row are equal, shape (n, K, K).
        readable: Whether an answer can be read, shape (n, K).
        columns: All columns in the order of calls.
    """
    classes = np.full(readable.shape, _UNREADABLE, dtype=np.int16)
    rows = np.arange(len(classes))
    for place, column in enumerate(columns):
        earlier = np.array(columns[:place], dtype=np.intp)
        alike = equal[:, column, earlier] & readable[:, earlier]
        number = np.full(len(classes), place)
        if place:
            first = classes[rows, earlier[alike.argmax(axis=1)]]
            number = np.where(alike.any(axis=1), first, number)
        classes[:, column] = np.where(readable[:, column], number, _UNREADABLE)
    return classes


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
