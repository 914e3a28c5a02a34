"""Store templates of the tests: a copy decides like a store that was calibrated by an upload."""

from typing import Any

from tests.kit.gateway import ONE, ROWS, TWO, UNANSWERABLE, Gateway, Serve


def decisions(gateway: Gateway) -> list[dict[str, Any]]:
    """The decisions on three queries, without the name and the time of their calibration."""
    found = [gateway.decided(text) for text in (ONE, TWO, UNANSWERABLE)]
    for each in found:
        del each["certificate"]["calibration_id"]
    return found


def test_a_copy_decides_like_an_upload(serve: Serve) -> None:
    """Two gateways of one configuration share a calibration; it is that of the same rows."""
    first, second, uploaded = serve(), serve(), serve(calibrated=False)
    uploaded.calibrate(ROWS)
    assert first.ready() == second.ready() != uploaded.ready()
    assert decisions(second) == decisions(uploaded)


def test_another_calibration_is_no_copy(serve: Serve) -> None:
    """What an upload reads decides; what only requests read does not."""
    first, second = serve(), serve(routing={"alpha": 0.25}, limits={"queue": 7})
    assert first.ready() != second.ready() == serve(routing={"alpha": 0.25}).ready()
