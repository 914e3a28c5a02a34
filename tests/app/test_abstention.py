"""Abstention: requests for which the router selects no candidate."""

from __future__ import annotations

import pytest

from tests.kit.gateway import ONE, UNANSWERABLE, Gateway, Serve, user
from tests.kit.lazy import LazyModule
from tests.kit.upstream import FakePool

openai = LazyModule("openai")


def test_a_refusal_is_an_ordinary_answer(gateway: Gateway, pool: FakePool) -> None:
    """By default no candidate is called: the content is a sentence, certified."""
    raw = gateway.openai().chat.completions.with_raw_response.create(
        model="auto", messages=user(UNANSWERABLE)
    )
    completion = raw.parse()
    choice = completion.choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content
    assert choice.message.refusal is None
    assert completion.model == "auto"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 0
    assert pool.models_called() == []
    racer = completion.model_dump()["racer"]
    assert (racer["abstained"], racer["abstain_reason"]) == (True, "p_null")
    assert (racer["selected"], racer["served_by"], racer["calls"]) == ([], None, [])
    assert racer["certificate"]["holds"] is True
    assert (raw.headers["x-racer-abstained"], raw.headers["x-racer-selected"]) == ("true", "")
    assert "x-racer-served-by" not in raw.headers


def test_on_abstain_strongest_calls_the_best_candidate(gateway: Gateway, pool: FakePool) -> None:
    """``on_abstain: strongest`` calls the best score, and the certificate is void."""
    pool.say("adder", "Roses")
    response = gateway.ask(UNANSWERABLE, {"on_abstain": "strongest"})
    racer = response.json()["racer"]
    assert response.json()["choices"][0]["message"]["content"] == "Roses"
    assert pool.models_called() == racer["selected"] == [next(iter(racer["pool_scores"]))]
    assert racer["certificate"]["reasons"] == ["abstained_strongest"]
    assert response.headers["x-racer-guarantee"] == "void; abstained_strongest"
    assert racer["abstained"] is False


def test_on_abstain_error_answers_422(gateway: Gateway, pool: FakePool) -> None:
    """``on_abstain: error`` is 422 router_abstained, which a retry cannot cure."""
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        gateway.openai().chat.completions.create(
            model="auto", messages=user(UNANSWERABLE), extra_body={"racer": {"on_abstain": "error"}}
        )
    assert caught.value.code == "router_abstained"
    assert caught.value.response.headers["x-should-retry"] == "false"
    streamed = gateway.ask(UNANSWERABLE, {"on_abstain": "error"}, stream=True)
    error = streamed.json()["error"]
    assert (streamed.status_code, error["code"]) == (422, "router_abstained")
    assert pool.models_called() == []


@pytest.mark.parametrize(("policy", "status"), [("error", 422), ("strongest", 200)])
def test_the_configuration_sets_the_default(
    serve: Serve, pool: FakePool, policy: str, status: int
) -> None:
    """The operator's choice applies to requests that say nothing; a request may differ."""
    gateway = serve(routing={"on_abstain": policy})
    assert gateway.ask(UNANSWERABLE).status_code == status
    assert len(pool.models_called()) == (1 if policy == "strongest" else 0)
    assert gateway.chat(UNANSWERABLE, {"on_abstain": "refuse"})["racer"]["abstained"] is True


def test_route_reports_why_no_candidate_is_called(gateway: Gateway, pool: FakePool) -> None:
    """Without executing, abstaining is an outcome and not an error under every policy."""
    for policy in ("refuse", "strongest", "error"):
        decision = gateway.route(UNANSWERABLE, on_abstain=policy)
        assert (decision["abstained"], decision["abstain_reason"]) == (True, "p_null")
        assert decision["null_in_set"] is True
        assert decision["selected"] == []
    assert pool.models_called() == []
    for policy in ("refuse", "strongest", "error"):
        racer = gateway.chat(ONE, {"on_abstain": policy})["racer"]
        assert (racer["selected"], racer["abstain_reason"]) == (["adder"], None)
        assert racer["certificate"]["holds"]


def test_the_papers_risk_target_abstains_by_the_null_model(serve: Serve) -> None:
    """With ``risk_target: paper`` the null model alone in the set is the reason."""
    gateway = serve(calibrated=False)
    gateway.calibrate(120, risk_target="paper")
    decision = gateway.route(UNANSWERABLE)
    assert decision["abstain_reason"] == "null_only"
    assert decision["null_in_set"] is True
    assert decision["certificate"]["guarantee"]["risk_target"] == "paper"


def test_abstentions_are_counted(serve: Serve) -> None:
    """The metric counts queries that no candidate was called for."""
    gateway = serve()
    gateway.chat(UNANSWERABLE)
    gateway.chat(ONE)
    gateway.route(UNANSWERABLE)
    assert "racer_abstained_total 2.0" in gateway.get("/metrics").text
