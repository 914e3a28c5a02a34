"""The report: its files, that its tables are its numbers, and that no name breaks a page."""

import base64
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import import_module

import numpy as np
import pytest
from PIL import Image

from racer_core.calibration.split_risk import split_risk
from racer_core.calibration.threshold import allowed_misses
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import InputError, install_hint
from racer_core.offline.evaluate import evaluate
from racer_core.offline.evaluation_result import AVERAGE, Setting
from racer_core.offline.protocol import Protocol
from racer_core.offline.report import canvas, overview, tables
from racer_core.offline.report.differences import differences
from racer_core.offline.report.risk_law import RiskLaw, risk_law
from racer_core.offline.report.view import RISK, View, spread, views
from racer_core.offline.report.write import check_report, write_report
from racer_core.offline.row_errors import standard_error
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
    return measured(
        files, splits=5, alphas=alphas, scores=tuple(Score), prices=(1.0, 2.5, 4.0), smoothing=True
    )


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


KINDS = ("risk", "size", "curves", "efficiency", "chosen", "money")


def test_files_are_there_and_nothing_else(folder):
    """Three texts and a drawing of each kind for both targets; the Markdown links to all."""
    drawings = {f"{kind}-{target}.png" for kind in KINDS for target in BINARY_TARGETS}
    assert {path.name for path in folder.iterdir()} == {
        *("results.json", "results.md", "index.html"),
        *drawings,
    }
    text = (folder / "results.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(([^)\s]+\.png)\)", text)) == drawings


def colours(png):
    """Every colour of a drawing, shape (n, 3)."""
    with Image.open(io.BytesIO(png)) as image:
        image.load()
        assert image.format == "PNG"
        pixels = np.asarray(image.convert("RGB"), dtype=np.int64)
    packed = np.unique(pixels @ [1 << 16, 1 << 8, 1])  # rows of three take 20 times as long to sort
    return np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=1)


@pytest.mark.parametrize("target", BINARY_TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_drawings_show_what_they_say(folder, kind, target):
    """Valid and not blank; each score's colour is there, and the law's where risk is drawn."""
    found = colours((folder / f"{kind}-{target}.png").read_bytes())
    assert len(found) > 20
    wanted = set(canvas.COLOURS.values()) if kind in ("curves", "efficiency", "money") else set()
    wanted |= {canvas.LAW} if kind in ("risk", "curves") else set()
    for colour in wanted:
        apart = np.abs(found - list(bytes.fromhex(colour[1:]))).max(axis=1)
        assert apart.min() <= 30, colour  # thin lines are blended with what is below


VOID = {"meta", "img"}


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
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

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
    """Every element is closed; no script, no link, no address: figures are inside."""
    assert page.open == []
    assert not {"script", "link", "iframe", "object", "a"} & set(page.tags)
    sources = [value for _, name, value in page.attributes if name in ("src", "href")]
    images = {base64.b64decode(s.removeprefix("data:image/png;base64,")) for s in sources}
    assert images == {path.read_bytes() for path in folder.glob("*.png")}
    names = {name for _, name, _ in page.attributes}
    assert names <= {"lang", "charset", "name", "content", "class", "scope", "src", "alt"}
    text = re.sub(r"base64,[^\"]*", "", (folder / "index.html").read_text(encoding="utf-8"))
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)


def test_every_figure_says_in_words_what_it_shows(page):
    """And has its numbers beside it."""
    alts = [value for tag, name, value in page.attributes if (tag, name) == ("img", "alt")]
    assert len(alts) == len(KINDS) * 2 == page.tags.count("details")
    assert all(len(alt) > 40 for alt in alts)


def test_odd_names_are_only_names(folder, page):
    """In the page they are text; in Markdown every row has the cells of its head."""
    assert page.tags.count("img") == len(KINDS) * 2
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
    for title, block, below in re.findall(
        r"^\*\*(.*)\*\*\n\n((?:^\|.*\n)+)\n\((.*)\)$", text, re.MULTILINE
    ):
        rows = [[unescaped(cell) for cell in cells_of(line)] for line in block.splitlines()]
        assert unescaped(title) not in found
        found[unescaped(title)] = (rows[0], rows[2:], unescaped(below))
    return found


def shown(cell, measure):
    """A number of results.json as tables write it: ± over rows, in brackets over splits.

    Calls saved are 1 - size / 3, so their error is a third of the size's.
    """
    errors = cell["se_rows"]
    error = errors["size"] / 3 if measure == "calls_saved" else errors[measure]
    return f"{cell['mean'][measure]:.3f} ±{1.96 * error:.3f} ({cell['sd'][measure]:.3f})"


MEASURES = {
    "Mean size (of 3)": ("size", "{score}"),
    "Accuracy": ("accuracy_stacked", "{score}, stacked"),
    "Calls saved, and accuracy gained": ("calls_saved", "{score}: calls saved"),
    "Mean money a query": ("cost", "{score}"),
}


def test_tables_hold_the_numbers_of_results_json(folder, results):
    """Every score, alpha, scope and target, to the last digit shown."""
    found = markdown_tables(folder)
    checked = 0
    for cell in results["cells"]:
        where = f"{cell['risk_target']}, {cell['scope']}"
        risk = {
            "paper": ("Risk P(C misses G')", "risk"),
            "answerable": (
                "Risk P(C misses G | some candidate is right)",
                "miss_given_answerable",
            ),
        }[cell["risk_target"]]
        measures = MEASURES | {risk[0]: (risk[1], "{score}")}
        for title, (measure, label) in measures.items():
            head, rows, _ = found[f"{title}, {where}"]
            row = next(r for r in rows if r[0] == label.format(score=cell["score"]))
            assert row[head.index(f"{cell['alpha']:g}")] == shown(cell, measure)
            checked += 1
    assert checked == 3 * 2 * 5 * 3 * 5  # scopes, targets, scores, alphas, tables


def test_controls_stand_in_every_table(folder, results):
    """Each candidate, the best ones, the router's first choice, full pools and random sets."""
    fixed = [name for name in results["controls"][ONE]["mean"] if name != "answerable"]
    assert len(fixed) == 3 + 2 + 1 + 4 + 1
    for title, (head, rows, _) in markdown_tables(folder).items():
        labels = [row[0] for row in rows]
        if title.startswith(("Risk P", "Mean size", "Accuracy,", "Alpha and vote")):
            assert {*fixed, "static"} <= {*labels, *(each.split(",")[0] for each in labels)}
        if title.startswith(("Risk P", "Accuracy,")):
            assert sum(label.startswith("random sets") for label in labels) == 5
        if title.startswith("Accuracy,"):
            scope = title.split(", ", 2)[2]
            for name in fixed:
                control = results["controls"][scope]
                sd = np.std(control["splits"][name])
                shown_as = f"{control['mean'][name]:.3f} ±{1.96 * control['se_rows'][name]:.3f}"
                assert set(rows[labels.index(name)][1:]) == {f"{shown_as} ({sd:.3f})"}
        assert len(head) == len(rows[0])


def test_every_table_says_what_it_was_measured_on(folder):
    """Encoder, router, splits, and rows where it is about one scope."""
    for title, (_, _, below) in markdown_tables(folder).items():
        assert below.startswith("encoder char-ngrams, router knn (140 training rows), 5 splits")
        if title.endswith(f", {ONE}"):
            assert below.endswith("one: 60 calibration, 12 validation, 48 test rows")


def test_page_has_the_tables_of_the_text(folder, page):
    """The same cells, and more below the figures."""
    in_page = [table[1:] for table in page.tables]
    for _, rows, _ in markdown_tables(folder).values():
        flat = [[" ".join(cell.split()) for cell in row] for row in rows]
        assert any([[" ".join(c.split()) for c in r] for r in t] == flat for t in in_page)


def test_differences_are_paired_by_split(evaluation, results):
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
        assert each["margin"] == pytest.approx(2 * gap.std() / np.sqrt(5))
        assert each["low"] == pytest.approx(np.percentile(gap, 2.5))
        assert each["high"] == pytest.approx(np.percentile(gap, 97.5))
    full = next(
        each
        for each in found
        if (each["scope"], each["what"]) == (ONE, "stacked - majority, full pool")
    )
    controls = evaluation.controls[ONE]
    expected = np.subtract(controls["full pool stacked"], controls["full pool majority"])
    assert full["mean"] == pytest.approx(expected.mean())
    assert (full["alpha"], full["risk_target"]) == (None, None)
    on_sets = [each for each in found if each["what"] == "stacked - weighted, sets of cover"]
    assert len(on_sets) == 3 * 2 * 3


@pytest.mark.parametrize("alpha", [0.05, 0.3])
def test_law_of_a_scope_is_beta_binomial(evaluation, alpha):
    """Mean, 95 % of splits, and the band of the mean over five independent splits, by scipy."""
    n, _, trials = evaluation.rows[ONE]
    missed = int(alpha * (n + 1) + 1e-9)
    exact = stats.betabinom(trials, missed, n + 1 - missed)
    law = risk_law(View(evaluation, ONE, RiskTarget.PAPER), Score.GAP, alpha)
    assert law.mean == pytest.approx(exact.mean() / trials)
    assert law.variance == pytest.approx(exact.var() / trials**2)
    assert law.interval == pytest.approx(tuple(np.divide(exact.interval(0.95), trials)))
    reach = 1.96 * exact.std() / trials / np.sqrt(5)
    assert law.band == pytest.approx((max(0.0, law.mean - reach), law.mean + reach))


def test_law_of_answerable_rows_counts_those_alone(evaluation):
    """Every split has its own number of them; the average has the laws' mean."""
    view = View(evaluation, ONE, RiskTarget.ANSWERABLE)
    counts = view.runs(Score.GAP, 0.3, "calibration_rows")
    assert (counts < evaluation.rows[ONE][0]).all()
    expected = np.mean([int(0.3 * (n + 1)) / (n + 1) for n in counts])
    assert risk_law(view, Score.GAP, 0.3).mean == pytest.approx(expected)
    parts = [risk_law(replace(view, scope=scope), Score.GAP, 0.3) for scope in (ONE, TWO)]
    mean = risk_law(replace(view, scope=AVERAGE), Score.GAP, 0.3)
    assert mean.mean == pytest.approx(np.mean([part.mean for part in parts]))
    assert mean.variance == pytest.approx(sum(part.variance for part in parts) / 4)


def test_law_of_a_score_with_ties_is_its_own():
    """`static` has a critical score for each rank: its risk is far below alpha, as its law says."""
    evaluation = measured(
        {ONE: synthetic_rows(300, seed=53)},
        splits=40,
        alphas=(0.1, 0.3),
        scores=(Score.GAP, Score.STATIC),
        risk_targets=(RiskTarget.ANSWERABLE,),
        false_abstain_budget=None,
    )
    view = View(evaluation, ONE, RiskTarget.ANSWERABLE)
    grid = {row[0]: row[1:] for row in tables.law_check(view).rows}
    assert "exact mean, static" in grid
    for alpha, cell in zip(view.alphas, grid["static"], strict=True):
        assert "inside" in cell
        law = risk_law(view, Score.STATIC, alpha)
        assert law.mean < 0.9 * alpha
        mean = view.risk(Score.STATIC, alpha).mean()
        assert mean == pytest.approx(law.mean, abs=5 * (law.variance / 40) ** 0.5)


def test_verdict_says_on_which_side_of_the_band_the_mean_lies(evaluation):
    """Inside includes the edges."""
    law = risk_law(View(evaluation, ONE, RiskTarget.PAPER), Score.GAP, 0.3)
    low, high = law.band
    for value, verdict in (
        (low, "inside"),
        (high, "inside"),
        (low - 1e-6, "below"),
        (high + 1e-6, "above"),
        (np.nan, "-"),
    ):
        assert law.verdict(np.full(4, value)) == verdict  # the mean of 4 equal numbers is exact


def test_risk_of_controls_is_that_of_their_sets(evaluation):
    """A single candidate misses what it answers wrong; the full pool misses nothing answerable."""
    controls = evaluation.controls[ONE]
    paper, answerable = (View(evaluation, ONE, target) for target in BINARY_TARGETS)
    right, some = np.array(controls["router top-1"]), np.array(controls["answerable"])
    np.testing.assert_allclose(paper.fixed_risk("router top-1").runs, 1 - right)
    np.testing.assert_allclose(answerable.fixed_risk("router top-1").runs, 1 - right / some)
    np.testing.assert_allclose(paper.fixed_risk("full pool majority").runs, 1 - some)
    np.testing.assert_allclose(answerable.fixed_risk("full pool majority").runs, 0.0)
    average = View(evaluation, AVERAGE, RiskTarget.ANSWERABLE).fixed_risk("router top-1").runs
    other = View(evaluation, TWO, RiskTarget.ANSWERABLE).fixed_risk("router top-1").runs
    np.testing.assert_allclose(average, (answerable.fixed_risk("router top-1").runs + other) / 2)


def test_choices_are_counted(evaluation):
    """A benchmark's splits each choose once; the average counts both benchmarks'."""
    for view in views(evaluation, RiskTarget.PAPER):
        counts = tables.choice_counts(view, Score.COVER)
        assert sum(counts.values()) == (10 if view.scope == AVERAGE else 5)
        grid = tables.chosen(view, Score.COVER)
        assert sum(int(cell) for row in grid.rows for cell in row[1:]) == sum(counts.values())


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
    drawings = {f"{kind}-answerable.png" for kind in ("risk", "size", "curves")}
    assert {path.name for path in tmp_path.glob("*.png")} == drawings
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
    head, rows, _ = markdown_tables(tmp_path)[
        f"Risk P(C misses G | some candidate is right), answerable, {ONE}"
    ]
    assert (head, rows[0]) == (["", "0.2"], ["gap", "-"])


@pytest.mark.slow
def test_the_same_evaluation_gives_the_same_files(evaluation, folder, tmp_path):
    """Drawings too: nothing depends on a clock or on what was drawn before."""
    write_report(evaluation, tmp_path, COMMAND)
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("scope", [ONE, AVERAGE])
def test_the_terminal_shows_errors_over_rows_beside_the_spread(evaluation, scope):
    """Sets, votes and controls; random sets too."""
    sets, votes = overview.overview(evaluation, [0.1])[:2]
    setting = Setting(scope=scope, risk_target=RiskTarget.PAPER, score=Score.GAP, alpha=0.1)
    cell = {
        "mean": {name: evaluation.mean(setting, name) for name in evaluation.cells[setting]},
        "sd": {name: evaluation.sd(setting, name) for name in evaluation.cells[setting]},
        "se_rows": {name: evaluation.se_rows(setting, name) for name in evaluation.cells[setting]},
    }
    for grid, measures in (
        (sets, {"risk": "risk", "size": "size"}),
        (
            votes,
            {
                "majority": "accuracy_majority",
                "stacked": "accuracy_stacked",
                "random, majority": "random_majority",
            },
        ),
    ):
        row = next(r for r in grid.rows if r[:2] == (scope, "gap"))
        for title, measure in measures.items():
            assert row[grid.head.index(title)] == shown(cell, measure)
    grid = overview.controls(evaluation)
    row = next(r for r in grid.rows if r[0] == "router top-1")
    error = standard_error(evaluation.influence(scope, "router top-1", "accuracy"))
    assert f" ±{1.96 * error:.3f} (" in row[grid.head.index(scope)]
    assert "1.96 standard errors over rows" in overview.LEGEND


def test_errors_of_gains_and_of_fixed_sets_are_over_rows(evaluation):
    """A gain's error is paired; the risk of a fixed set is a ratio, by the delta method."""
    view = View(evaluation, ONE, RiskTarget.ANSWERABLE)
    best = view.control("best single")
    gain = view.figure(Score.GAP, 0.1, "accuracy_majority") - best
    influence = evaluation.influence(ONE, view.setting(Score.GAP, 0.1), "accuracy_majority")
    influence = influence - evaluation.influence(ONE, "best single", "accuracy")
    assert f" ±{1.96 * standard_error(influence):.3f} (" in str(gain)
    assert str(best - best) == "0.000 ±0.000 (0.000)"
    some = np.mean(evaluation.controls[ONE]["answerable"])
    hit = np.mean(evaluation.controls[ONE]["router top-1"])
    of_hit, of_some = (
        evaluation.influence(ONE, name, "accuracy") for name in ("router top-1", "answerable")
    )
    expected = standard_error((of_hit - hit / some * of_some) / some)
    found = view.fixed_risk("router top-1")
    assert standard_error(found.influence) == pytest.approx(expected, rel=0.01)
    paper = View(evaluation, ONE, RiskTarget.PAPER).fixed_risk("router top-1")
    assert standard_error(paper.influence) == pytest.approx(standard_error(of_hit))


def test_spread_is_the_mean_with_its_two_errors(evaluation):
    """Written as tables show it; a share of no rows is a dash."""
    setting = Setting(scope=ONE, risk_target=RiskTarget.PAPER, score=Score.GAP, alpha=0.1)
    runs = evaluation.cells[setting][RISK[RiskTarget.PAPER]]
    mean, sd = evaluation.mean(setting, "risk"), evaluation.sd(setting, "risk")
    assert spread(runs) == f"{mean:.3f} ({sd:.3f})"
    assert spread(runs, 0.01) == f"{mean:.3f} ±0.020 ({sd:.3f})"
    assert spread([np.nan, 0.5]) == "-"


def test_missing_matplotlib_names_the_extra(monkeypatch, tmp_path):
    """Said before anything is measured."""

    def missing(name):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return import_module(name)

    monkeypatch.setattr(canvas, "import_module", missing)
    with pytest.raises(InputError, match=re.escape(install_hint("report"))):
        check_report(tmp_path / "report")
    assert not (tmp_path / "report").exists()


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
