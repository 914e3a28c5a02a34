"""The tables of one scope: a row for every score, vote and control, a column for every alpha."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from racer_core.offline.protocol import Order
from racer_core.offline.report.risk_law import RiskLaw, risk_law
from racer_core.offline.report.view import BEST, BEST_HERE, RISK, Figure, Grid, View, number
from racer_core.types import RiskTarget

_AtAlpha = Callable[[float], Figure]  # what a row holds
_RISK_TITLE = {
    RiskTarget.PAPER: "Risk P(C misses G')",
    RiskTarget.ANSWERABLE: "Risk P(C misses G | some candidate is right)",
    RiskTarget.QUALITY: "Risk E[best quality in the pool - best quality in C]",
}


def risks(view: View) -> Grid:
    """Realised risk. Random sets draw candidates only: theirs is always that of ``answerable``."""
    lost = "shortfall" if view.target is RiskTarget.QUALITY else "miss given answerable"
    rows = [(score.value, _risk(view, score)) for score in view.scores]
    rows += [
        (
            f"random sets as large as {score}: {lost}",
            _runs(view, score, "random_miss"),
        )
        for score in view.scores
    ]
    rows += [(name, _always(view.fixed_risk(name))) for name in view.fixed]
    return _by_alpha(view, _RISK_TITLE[view.target], rows)


def sizes(view: View) -> Grid:
    """Mean candidates called; random sets have the sizes of the sets that they stand beside."""
    rows = [(score.value, _runs(view, score, "size")) for score in view.scores]
    rows += [(name, _always(Figure(view.fixed_size(name)))) for name in view.fixed]
    return _by_alpha(view, f"Mean size (of {len(view.evaluation.pool)})", rows)


def accuracies(view: View) -> Grid:
    """Share of right answers by rule; an abstention is not one."""
    rows = [
        (f"{score}, {rule}", _runs(view, score, f"accuracy_{rule}"))
        for score in view.scores
        for rule in view.rules
    ]
    rows += [
        (f"random sets as large as {score}, majority", _runs(view, score, "random_majority"))
        for score in view.scores
    ]
    rows += [(name, _always(view.control(name))) for name in view.fixed]
    return _by_alpha(view, "Accuracy", rows)


def gains(view: View) -> Grid:
    """Calls saved, and what is gained by it over the two best single candidates."""
    rows: list[tuple[str, _AtAlpha]] = []
    for score in view.scores:
        rows.append((f"{score}: calls saved", _runs(view, score, "calls_saved")))
        for rule in view.rules:
            accuracy = _runs(view, score, f"accuracy_{rule}")
            for base in (BEST, BEST_HERE):
                rows.append((f"{score}, {rule}: over {base}", _above(accuracy, view, base)))
    best = view.control(BEST)
    rows += [(f"{name}: over {BEST}", _always(view.control(name) - best)) for name in view.fixed]
    return _by_alpha(view, "Calls saved, and accuracy gained", rows)


def costs(view: View) -> Grid:
    """Mean money a query, in the unit of the prices."""
    prices = view.evaluation.protocol.prices
    assert prices is not None
    rows = [(score.value, _runs(view, score, "cost")) for score in view.scores]
    whole_pool = np.full(view.evaluation.protocol.splits, sum(prices))
    rows += [("full pool", _always(Figure(whole_pool)))]
    return _by_alpha(view, "Mean money a query", rows)


def law_check(view: View) -> Grid:
    """Realised risk beside its exact law: 5 % of the means lie outside the band by luck.

    Scores without ties share one law; a score whose critical scores tie has its own rows.
    """
    laws = {score: [risk_law(view, score, alpha) for alpha in view.alphas] for score in view.scores}
    rows: list[tuple[str, ...]] = []
    for shared in _groups(laws):
        of = "" if len(shared) == len(laws) else f", {', '.join(shared)}"
        own = laws[shared[0]]
        rows += [
            (f"exact mean{of}", *(number(law.mean) if law else "-" for law in own)),
            (f"95 % of splits{of}", *(_range(law.interval) if law else "-" for law in own)),
            (f"95 % of means{of}", *(_range(law.band) if law else "-" for law in own)),
        ]
    for score, own in laws.items():
        realised = [view.risk(score, alpha) for alpha in view.alphas]
        cells = (
            f"{number(float(np.mean(runs)))} {law.verdict(runs)}" if law else "-"
            for runs, law in zip(realised, own, strict=True)
        )
        rows.append((score.value, *cells))
    return Grid(
        title=f"Realised risk against its law, {view.target}, {view.scope}",
        measured_on=view.measured_on,
        head=("", *(f"{alpha:g}" for alpha in view.alphas)),
        rows=tuple(rows),
    )


def _groups(laws: Mapping[Order, list[RiskLaw | None]]) -> list[list[Order]]:
    """Scores with equal laws together, in the order of the first."""
    groups: list[list[Order]] = []
    for score, own in laws.items():
        for group in groups:
            if laws[group[0]] == own:
                group.append(score)
                break
        else:
            groups.append([score])
    return groups


def chosen(view: View, score: Order) -> Grid:
    """How often validation rows chose each alpha and vote; a benchmark's splits, or all of them."""
    counts = choice_counts(view, score)
    rows = tuple(
        (rule.value, *(str(counts[alpha, rule.value]) for alpha in view.alphas))
        for rule in view.rules
    )
    return Grid(
        title=f"Times chosen, {score}, {view.target}, {view.scope}",
        measured_on=view.measured_on,
        head=("", *(f"{alpha:g}" for alpha in view.alphas)),
        rows=rows,
    )


def choice_counts(view: View, score: Order) -> Counter[tuple[float, str]]:
    """How often each alpha and vote was chosen."""
    scopes = {part.scope for part in view.parts}
    return Counter(
        (choice.alpha, choice.rule.value)
        for choice in view.evaluation.choices
        if (choice.risk_target, choice.score) == (view.target, score) and choice.scope in scopes
    )


def choices(view: View) -> Grid:
    """What the chosen settings did on test rows, beside the best single candidates."""
    measures = ("accuracy", "size", "risk")
    rows = [
        (score.value, *(str(view.chosen(score, measure)) for measure in measures))
        for score in view.scores
    ]
    for name in view.fixed:
        figures = view.control(name), Figure(view.fixed_size(name)), view.fixed_risk(name)
        rows.append((name, *map(str, figures)))
    return Grid(
        title=f"Alpha and vote chosen on validation rows, {view.target}, {view.scope}",
        measured_on=view.measured_on,
        head=("", *measures),
        rows=tuple(rows),
    )


def _by_alpha(view: View, title: str, rows: list[tuple[str, _AtAlpha]]) -> Grid:
    return Grid(
        title=f"{title}, {view.target}, {view.scope}",
        measured_on=view.measured_on,
        head=("", *(f"{alpha:g}" for alpha in view.alphas)),
        rows=tuple((name, *(str(at(alpha)) for alpha in view.alphas)) for name, at in rows),
    )


def _risk(view: View, score: Order) -> _AtAlpha:
    return _runs(view, score, RISK[view.target])


def _runs(view: View, score: Order, measure: str) -> _AtAlpha:
    return lambda alpha: view.figure(score, alpha, measure)


def _above(accuracy: _AtAlpha, view: View, base: str) -> _AtAlpha:
    return lambda alpha: accuracy(alpha) - view.control(base)


def _always(figure: Figure) -> _AtAlpha:
    return lambda _: figure


def _range(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.3f} to {interval[1]:.3f}"
