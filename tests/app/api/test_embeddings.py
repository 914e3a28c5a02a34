"""Embeddings: from the candidate that is named or configured."""

from __future__ import annotations

import pytest

from tests.kit.gateway import Gateway, Serve, candidates
from tests.kit.upstream import FakePool


def test_embeddings_come_from_the_candidate_that_is_named(gateway: Gateway, pool: FakePool) -> None:
    """Texts go out and vectors come back as they are."""
    sent = {"model": "poet", "input": ["a", "bcd"], "encoding_format": "float", "x": 1}
    response = gateway.post("/v1/embeddings", json=sent)
    answer = response.json()
    assert [each["embedding"] for each in answer["data"]] == [[1.0, 1.0], [3.0, 1.0]]
    assert (answer["model"], response.headers["x-racer-served-by"]) == ("poet", "poet")
    assert pool.requests == [sent]


def test_embeddings_of_auto_come_from_the_configured_candidate(
    serve: Serve, pool: FakePool
) -> None:
    """Without one, `auto` has none: 404 says what to do."""
    embedder = candidates(pool.url, adder={"model": "org/embedder"})
    gateway = serve(embeddings="adder", candidates=embedder, calibrated=False)
    answer = gateway.post("/v1/embeddings", json={"model": "auto", "input": "a"}).json()
    assert (answer["model"], pool.requests[0]["model"]) == ("adder", "org/embedder")


@pytest.mark.parametrize("model", ["auto", "gpt-4o", "auto/fast"])
def test_embeddings_of_an_unknown_model_are_not_found(
    gateway: Gateway, pool: FakePool, model: str
) -> None:
    """The error names the model; no candidate is called."""
    response = gateway.post("/v1/embeddings", json={"model": model, "input": "a"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    assert pool.models_called() == []
