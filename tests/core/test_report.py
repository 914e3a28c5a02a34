"""The report: its files, that its tables are its numbers, and that no name breaks a page."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from racer_core.calibration.split_risk import split_risk
from racer_core.calibration.threshold import allowed_misses
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import InputError
from racer_core.offline import evaluation_tables as tables
from racer_core.offline.evaluate import evaluate
from racer_core.offline.evaluation_result import AVERAGE, RISK, Setting
from racer_core.offline.protocol import Protocol
from racer_core.offline.report import check_report, differences, write_report
from racer_core.offline.risk_law import RiskLaw, risk_law
from racer_core.offline.standard_errors import standard_error
from racer_core.offline.table import build_table
from racer_core.types import BINARY_TARGETS, LabelledRows, RiskTarget, Score
from tests.kit.lazy import LazyModule
from tests.kit.synthetic import POOL, synthetic_rows

stats = LazyModule("scipy.stats")

ODD = ("a|b *x* [y](z) `c`", "<img src=x onerror=alert(1)>", "$5$ & \\ _d_ #e")
ONE, TWO = "one", "two | <b>$2$"
COMMAND = "racer evaluate --data 'a & b.jsonl'"


def odd(rows):
    """The same rows about candidates whose names mean something to Markdown or HTML."""
    names = dict(zip(POOL, ODD, strict=True))
    return LabelledRows(
        pool=ODD,
        rows=tuple(
            replace(
                row,
                correct=frozenset(names[name] for name in row.correct),
                answers={names[name]: text for name, text in row.answers.items()},
            )
            for row in rows.rows
        ),
    )


def measured(files, **protocol):
    """The evaluation of some files."""
    table = build_table(
        files, encoder=CharNgramEncoder(), router="knn", protocol=Protocol(**protocol)
    )
    return evaluate(table, encoder="char-ngrams", router="knn")


@pytest.fixture(scope="module")
def evaluation():
    """Two benchmarks with answers and prices, five splits, three alphas."""
    files = {
        ONE: odd(synthetic_rows(200, seed=51, answers=True)),
        TWO: odd(synthetic_rows(150, seed=52, answers=True)),
    }
    alphas = (0.05, 0.1, 0.3)
    return measured(files, splits=5, alphas=alphas, scores=tuple(Score), prices=(1.0, 2.5, 4.0))


@pytest.fixture(scope="module")
def folder(evaluation, tmp_path_factory):
    """The report of that evaluation."""
    folder = tmp_path_factory.mktemp("reports") / "a" / "report"
    write_report(evaluation, folder, COMMAND)
    return folder


@pytest.fixture(scope="module")
def results(folder):
    """results.json, which must be JSON to other programs too: no NaN."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    text = (folder / "results.json").read_text(encoding="utf-8")
    return json.loads(text, parse_constant=refuse)


def at(scope, target, score, alpha):
    """A setting."""
    return Setting(scope=scope, risk_target=target, score=score, alpha=alpha)


def test_files_are_there_and_nothing_else(folder):
    """Three texts."""
    names = {path.name for path in folder.iterdir()}
    assert names == {"results.json", "results.md", "index.html"}


class Page(HTMLParser):
    """Checks the nesting, and collects attributes, texts and tables."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.tables = []

    def handle_starttag(self, tag, attrs):
        """Remember."""
        self.tags.append(tag)
        self.attributes += [(tag, *each) for each in attrs]
        if tag != "meta":
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        """An element of a chart without content."""
        self.tags.append(tag)
        self.attributes += [(tag, *each) for each in attrs]

    def handle_endtag(self, tag):
        """What was opened last is closed first."""
        assert self.open.pop() == tag

    def handle_data(self, data):
        """Words, and cells among them."""
        self.texts.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data


@pytest.fixture(scope="module")
def page(folder):
    """index.html, parsed."""
    page = Page()
    page.feed((folder / "index.html").read_text(encoding="utf-8"))
    page.close()
    return page


def test_page_parses_and_needs_nothing_else(folder, page):
    """Every element is closed; no script, no link, no image, no address."""
    assert page.open == []
    assert not {"script", "link", "iframe", "object", "a", "img"} & set(page.tags)
    names = {name for _, name, _ in page.attributes}
    assert not {"src", "href", "style", "onerror"} & names
    text = (folder / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)


def test_charts_have_a_line_for_each_score(evaluation, page):
    """Size and risk for both targets; the points rise with the size as the means do."""
    assert page.tags.count("svg") == 2 * len(BINARY_TARGETS)
    lines = [value for tag, name, value in page.attributes if (tag, name) == ("polyline", "points")]
    assert len(lines) == 4 * len(Score)
    drawn = [
        [tuple(map(float, p.split(","))) for p in line.split()] for line in lines[: len(Score)]
    ]
    for score, points in zip(Score, drawn, strict=True):
        sizes = [
            evaluation.mean(at(AVERAGE, RiskTarget.PAPER, score, alpha), "size")
            for alpha in (0.05, 0.1, 0.3)
        ]
        heights = [260.0 - y for _, y in points]  # above the axis
        largest = max(260.0 - y for line in drawn for _, y in line)
        assert largest == 240.0
        np.testing.assert_allclose(
            np.diff(heights), np.diff(sizes) * heights[0] / sizes[0], atol=0.2
        )
        assert [x for x, _ in points] == [130.0, 210.0, 530.0]


def test_odd_names_are_only_names(folder, page):
    """In the page they are text; in Markdown every row has the cells of its head."""
    for name in (*ODD, ONE, TWO, COMMAND):
        assert name in "".join(page.texts)
    text = (folder / "results.md").read_text(encoding="utf-8")
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(cells_of(line)) for line in block.splitlines()}) == 1
    assert not re.search(r"(?<!\\)<", text)
    assert not re.search(r"(?<!\\)`", text)
    assert "candidate a\\|b \\*x\\* \\[y\\](z) \\`c\\`" in text


def cells_of(line):
    """The cells of a Markdown row."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def unescaped(text):
    """What Markdown shows."""
    return re.sub(r"\\([^\w\s]|_)", r"\1", text)


def markdown_tables(folder):
    """Title to head and rows."""
    text = (folder / "results.md").read_text(encoding="utf-8")
    found = {}
    for title, block in re.findall(r"^\*\*(.*)\*\*\n\n((?:^\|.*\n)+)", text, re.MULTILINE):
        rows = [[unescaped(cell) for cell in cells_of(line)] for line in block.splitlines()]
        assert unescaped(title) not in found
        found[unescaped(title)] = (rows[0], rows[2:])
    return found


def test_page_and_text_have_the_same_words(folder, page):
    """Every table, heading and sentence, in the same order."""
    flat = [[[" ".join(cell.split()) for cell in row] for row in table] for table in page.tables]
    assert flat == [[head, *rows] for head, rows in markdown_tables(folder).values()]
    shown = {" ".join(each.split()) for each in page.texts}
    text = (folder / "results.md").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line and not line.startswith("|"):
            assert unescaped(line).strip("#* ") in shown


def shown(cell, measure):
    """A number of results.json as tables write it: ± over rows, in brackets over splits."""
    error = cell["se_rows"][measure]
    return f"{cell['mean'][measure]:.3f} ±{1.96 * error:.3f} ({cell['sd'][measure]:.3f})"


def test_tables_hold_the_numbers_of_results_json(folder, results):
    """Every score, alpha, scope and target, to the last digit shown."""
    found = markdown_tables(folder)
    measures = {"size": "size", "saved": "calls_saved", "cost": "cost"}
    risk = {"paper": "risk", "answerable": "miss_given_answerable"}
    for cell in results["cells"]:
        target = cell["risk_target"]
        setting = [cell["scope"], cell["score"], f"{cell['alpha']:g}"]
        votes = {"stacked": "accuracy_stacked", "random, majority": "random_majority"}
        for title, columns in (
            (f"risk target: {target}, router: knn", measures | {"risk": risk[target]}),
            (f"accuracy by vote, risk target: {target}, router: knn", votes),
        ):
            head, rows = found[title]
            (row,) = (r for r in rows if r[:3] == setting)
            for column, measure in columns.items():
                assert row[head.index(column)] == shown(cell, measure)
    assert len(results["cells"]) == 3 * 2 * 5 * 3  # scopes, targets, scores, alphas


def test_controls_stand_beside_the_sets(folder, results):
    """Each candidate, the best ones, the router's first choice and full pools."""
    head, rows = markdown_tables(folder)["controls: accuracy on the test rows"]
    fixed = [name for name in results["controls"][ONE]["mean"] if name != "answerable"]
    assert len(fixed) == 3 + 2 + 1 + 4 + 1
    assert [row[0] for row in rows] == [*fixed, "some candidate right"]
    for row in rows[:-1]:
        for scope, cell in zip(head[1:], row[1:], strict=True):
            control = results["controls"][scope]
            sd, error = np.std(control["splits"][row[0]]), control["se_rows"][row[0]]
            assert cell == f"{control['mean'][row[0]]:.3f} ±{1.96 * error:.3f} ({sd:.3f})"


def test_the_report_says_what_its_errors_are(folder):
    """The resamples, and in the same line that the draw of the training rows is left out."""
    text = (folder / "results.md").read_text(encoding="utf-8")
    (line,) = {each for each in text.splitlines() if each.startswith("± is 1.96")}
    assert "2,000 bootstrap resamples of the clusters" in line
    assert "does not include the draw of the training rows" in line
    assert "encoder char-ngrams, router knn (140 training rows), 5 splits" in text


def test_differences_are_paired_by_split_and_by_resample(evaluation, results):
    """Against the runs in results.json, one by one; a difference of means has another spread."""
    runs = {
        (c["scope"], c["risk_target"], c["score"], c["alpha"]): c["splits"]
        for c in results["cells"]
    }
    found = results["differences"]
    sizes = [each for each in found if each["measure"] == "size"]
    assert len(sizes) == 3 * 2 * 4 * 3
    for each in sizes:
        key = each["scope"], each["risk_target"]
        other = each["what"].removeprefix("cover - ")
        gap = np.subtract(
            runs[*key, "cover", each["alpha"]]["size"], runs[*key, other, each["alpha"]]["size"]
        )
        assert (each["mean"], each["sd"]) == pytest.approx((gap.mean(), gap.std()))
        drawn = [
            evaluation.draws(each["scope"], at(*key, score, each["alpha"]), "size")
            for score in ("cover", other)
        ]
        error = standard_error(drawn[0] - drawn[1])
        assert each["se_rows"] == pytest.approx(error) if error else each["se_rows"] > 0.0
    (full,) = (
        x for x in found if (x["scope"], x["what"]) == (ONE, "stacked - majority, full pool")
    )
    controls = evaluation.controls[ONE]
    expected = np.subtract(controls["full pool stacked"], controls["full pool majority"])
    assert full["mean"] == pytest.approx(expected.mean())
    assert (full["alpha"], full["risk_target"]) == (None, None)
    on_sets = [each for each in found if each["what"] == "stacked - weighted, sets of cover"]
    assert len(on_sets) == 3 * 2 * 3


def test_headlines_compare_what_validation_rows_choose(evaluation, results, folder):
    """Accuracy and size are the means of the choices; gains are over the same splits."""
    found = results["headlines"]
    assert {(each["scope"], each["risk_target"]) for each in found} >= {(ONE, "paper")}
    for each in (x for x in found if x["scope"] == ONE):
        own = [
            choice
            for choice in evaluation.choices
            if (choice.scope, choice.risk_target, choice.score)
            == (ONE, each["risk_target"], each["score"])
        ]
        accuracy = np.mean([choice.accuracy for choice in own])
        assert each["accuracy"] == pytest.approx(accuracy)
        assert each["size"] == pytest.approx(np.mean([choice.size for choice in own]))
        assert each["calls_saved"] == pytest.approx(1 - each["size"] / 3)
        for gain, control in (
            ("over_full_pool", "full pool tuned"),
            ("over_best_single", "best single"),
        ):
            base = np.mean(evaluation.controls[ONE][control])
            assert each[gain] == pytest.approx(accuracy - base)
            assert each[f"se_{gain}"] > 0.0 or each[gain] == 0.0  # the same on every row
    _, rows = markdown_tables(folder)["sets against the full pool and the best candidate"]
    assert len(rows) == len(found)


@pytest.mark.parametrize("alpha", [0.05, 0.3])
def test_law_of_a_scope_is_beta_binomial(evaluation, alpha):
    """Mean, 95 % of splits, and the band of the mean over five independent splits, by scipy."""
    n, _, trials = evaluation.rows[ONE]
    missed = int(alpha * (n + 1) + 1e-9)
    exact = stats.betabinom(trials, missed, n + 1 - missed)
    law = risk_law(evaluation, at(ONE, RiskTarget.PAPER, Score.GAP, alpha))
    assert law.mean == pytest.approx(exact.mean() / trials)
    assert law.variance == pytest.approx(exact.var() / trials**2)
    assert law.interval == pytest.approx(tuple(np.divide(exact.interval(0.95), trials)))
    reach = 1.96 * exact.std() / trials / np.sqrt(5)
    assert law.band == pytest.approx((max(0.0, law.mean - reach), law.mean + reach))


def test_law_of_answerable_rows_counts_those_alone(evaluation, folder):
    """Every split has its own number of them; the average has the laws' mean."""
    setting = at(ONE, RiskTarget.ANSWERABLE, Score.STATIC, 0.3)
    counts = np.array(evaluation.cells[setting]["calibration_rows"])
    assert (counts < evaluation.rows[ONE][0]).all()
    expected = np.mean([int(0.3 * (n + 1)) / (n + 1) for n in counts])
    law = risk_law(evaluation, setting)
    assert law.mean == pytest.approx(expected, abs=1e-4)
    parts = [risk_law(evaluation, replace(setting, scope=scope)) for scope in (ONE, TWO)]
    mean = risk_law(evaluation, replace(setting, scope=AVERAGE))
    assert mean.mean == pytest.approx(np.mean([part.mean for part in parts]))
    assert mean.variance == pytest.approx(sum(part.variance for part in parts) / 4)
    head, rows = markdown_tables(folder)["realised risk against its law, answerable"]
    (row,) = (r for r in rows if r[:3] == [ONE, "static", "0.3"])
    assert row[head.index("n")] == f"{counts.mean():.1f}"
    assert row[head.index("exact mean")] == f"{expected:.3f}"
    assert row[head.index("95 % of means")] == f"{law.band[0]:.3f} to {law.band[1]:.3f}"


def test_law_of_a_score_with_ties_is_its_own():
    """Every query calls its first candidate, which misses less than alpha: so the law says."""
    evaluation = measured(
        {ONE: synthetic_rows(300, seed=53)},
        splits=40,
        alphas=(0.5, 0.6),
        scores=(Score.GAP, Score.STATIC),
        risk_targets=(RiskTarget.ANSWERABLE,),
        false_abstain_budget=None,
    )
    grid = {row[1:3]: row for row in tables.law_grid(evaluation, RiskTarget.ANSWERABLE).rows}
    for alpha in (0.5, 0.6):
        setting = at(ONE, RiskTarget.ANSWERABLE, Score.STATIC, alpha)
        assert grid["static", f"{alpha:g}"][-1] == "inside"
        law = risk_law(evaluation, setting)
        assert law.mean < 0.9 * alpha
        mean = evaluation.mean(setting, RISK[RiskTarget.ANSWERABLE])
        assert mean == pytest.approx(law.mean, abs=5 * (law.variance / 40) ** 0.5)


def test_verdict_says_on_which_side_of_the_band_the_mean_lies(evaluation):
    """Inside includes the edges."""
    law = risk_law(evaluation, at(ONE, RiskTarget.PAPER, Score.GAP, 0.3))
    low, high = law.band
    for value, verdict in (
        (low, "inside"),
        (high, "inside"),
        (low - 1e-6, "below"),
        (high + 1e-6, "above"),
        (np.nan, "-"),
    ):
        assert law.verdict(np.full(4, value)) == verdict  # the mean of 4 equal numbers is exact


@pytest.mark.slow
def test_a_missing_measure_is_reported_with_its_reason(tmp_path):
    """No answers: no accuracy anywhere; one benchmark: no average; no prices: no money."""
    rows = synthetic_rows(60, seed=53)
    evaluation = measured(
        {ONE: replace(rows, rows=(*rows.rows, rows.rows[0]))},
        splits=2,
        alphas=(0.01, 0.2),
        scores=(Score.COVER,),
        risk_targets=(RiskTarget.ANSWERABLE,),
    )
    write_report(evaluation, tmp_path, COMMAND)
    text = unescaped((tmp_path / "results.md").read_text(encoding="utf-8"))
    for sentence in (
        "Not measured: accuracy, votes and the choice of alpha and vote, as the rows have no",
        "Not measured: money, as no prices were given",
        "Not measured: the fixed order that never sees a query (`static`)",
        "Not measured: answerable on one at alpha 0.01 (2 of 2 splits), as calibration rows are",
    ):
        assert sentence in text
    assert "average" not in text
    assert "1 row repeats a query" in text
    assert differences(evaluation) == ()


@pytest.mark.slow
def test_one_split_of_one_candidate_can_be_reported(tmp_path):
    """No spread, nothing to route, and a scope without any answerable row."""
    rows = synthetic_rows(60, seed=54, answers=True)
    alone = LabelledRows(
        pool=POOL[:1],
        rows=tuple(
            replace(row, correct=frozenset(), answers={POOL[0]: "wrong"}) for row in rows.rows
        ),
    )
    solvable = replace(
        alone,
        rows=tuple(
            replace(row, query=f"{row.query}!", correct=frozenset(POOL[:1])) for row in alone.rows
        ),
    )
    evaluation = measured({ONE: alone, TWO: solvable}, splits=1, alphas=(0.2,))
    write_report(evaluation, tmp_path, COMMAND)
    head, rows = markdown_tables(tmp_path)["risk target: answerable, router: knn"]
    assert rows[0][: head.index("risk") + 1] == [ONE, "gap", "0.2 infeasible", "-"]


@pytest.mark.slow
def test_the_same_evaluation_gives_the_same_files(evaluation, folder, tmp_path):
    """Nothing depends on a clock."""
    write_report(evaluation, tmp_path, COMMAND)
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_the_terminal_has_the_tables_of_the_report_at_some_alphas(evaluation, folder):
    """The same cells."""
    found = markdown_tables(folder)
    for grid in tables.overview(evaluation, [0.1]):
        rows = [row for row in found[grid.title][1] if row[2] == "0.1"]
        assert [[" ".join(cell.split()) for cell in row] for row in grid.rows] == rows
        assert rows
    assert "1.96 standard errors over rows" in tables.LEGEND


def test_spread_is_the_mean_with_its_two_errors():
    """Written as tables show it; a share of no rows is a dash."""
    assert tables.spread([0.2, 0.4]) == "0.300 (0.100)"
    assert tables.spread([0.2, 0.4], 0.01) == "0.300 ±0.020 (0.100)"
    assert tables.spread([np.nan, 0.5]) == "-"


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    """It is named."""
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputError, match="file: the report cannot be written there"):
        check_report(file)
    with pytest.raises(InputError, match="report: the report cannot be written there"):
        check_report(file / "report")


@pytest.mark.parametrize(("n", "trials", "splits"), [(60, 30, 1), (200, 80, 4), (900, 600, 20)])
def test_limit_of_the_mean_risk_is_passed_as_seldom_as_it_says(n, trials, splits):
    """Means over splits drawn from the exact law, with few rows and one split too.

    20,000 draws: 1 % of them is 200 ± 14, and more than 280 come with a chance below 1e-6.
    """
    alpha, rate = 0.1, 0.01
    scores = np.arange(n + trials, dtype=float)
    own = split_risk(scores[:n], scores[n:], allowed_misses(n, alpha))
    mean, variance, third = own.mean, own.variance, own.third
    law = RiskLaw(mean=mean, variance=variance, third=third, interval=(0.0, 1.0), splits=splits)
    rng = np.random.default_rng(8)
    missed = allowed_misses(n, alpha) + 1
    risks = rng.beta(missed, n + 1 - missed, size=(20_000, splits))
    means = rng.binomial(trials, risks).mean(axis=1) / trials
    assert third == pytest.approx(
        ((rng.binomial(trials, risks[:, 0]) / trials - mean) ** 3).mean(), rel=0.35
    )
    assert (means > law.limit(rate)).sum() <= 280
    assert (means > law.limit(rate)).sum() >= 40  # a limit that nothing passes would say nothing
