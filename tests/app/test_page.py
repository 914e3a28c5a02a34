"""The page as it is served: its files, their headers, and what they may never do."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.monitoring.drift.statistics import STREAMS
from app.routing.reasons import Reason, Remark
from app.ui.assets import PAGE, PLOTLY, Assets
from racer_core.sequential.serving import StopReason
from tests.kit.gateway import Gateway, Serve

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "app" / "ui"
OURS = sorted(path for path in FOLDER.iterdir() if path.suffix in (".html", ".css", ".js", ".svg"))
NAMES = sorted(path.name for path in OURS if path.name != "index.html")
PATHS = ["/ui", *(f"/ui/{name}" for name in (*NAMES, PLOTLY))]
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


def test_the_table_of_files_is_the_folder() -> None:
    """The document under its own address alone, and Plotly's script beside our files."""
    assert Assets().names == tuple(sorted([PAGE, PLOTLY, *NAMES]))


@pytest.mark.parametrize("path", PATHS)
def test_a_file_is_served_without_a_key_under_the_policy(gateway: Gateway, path: str) -> None:
    """Compressed if the client accepts that, otherwise the same bytes uncompressed."""
    with gateway.http(None) as client:
        plain = client.get(path, headers={"accept-encoding": "identity"})
        packed = client.get(path, headers={"accept-encoding": "gzip"})
    assert plain.status_code == packed.status_code == 200
    assert plain.content == packed.content
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    policy = dict(
        part.split(" ", 1) for part in plain.headers["content-security-policy"].split("; ")
    )
    assert policy == POLICY
    assert plain.headers["x-content-type-options"] == "nosniff"
    assert plain.headers["referrer-policy"] == "no-referrer"
    assert plain.headers["vary"] == "accept-encoding"


@pytest.mark.parametrize("path", ["/ui", "/ui/main.js"])
def test_a_cached_file_is_not_sent_again(gateway: Gateway, serve: Serve, path: str) -> None:
    """304 at any gateway of the same release, and 200 for a tag of another one."""
    first = gateway.get(path, None)
    assert first.headers["cache-control"] == "no-cache"
    other = serve(calibrated=False)
    for each in (gateway, other):
        with each.http(None) as client:
            known = client.get(path, headers={"if-none-match": first.headers["etag"]})
            stale = client.get(path, headers={"if-none-match": 'W/"another"'})
        assert (known.status_code, known.content) == (304, b"")
        assert known.headers["etag"] == first.headers["etag"]
        assert stale.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/ui/index.html", "/ui/assets.py", "/ui/__init__.py", "/ui/", "/ui/..", "/ui/../main.py",
        "/ui/%2e%2e/main.py", "/ui/..%2fmain.py", "/ui/%2e%2e%2fmain.py", "/ui/..%5cmain.py",
        "/ui//etc/passwd", "/ui/%00", "/ui/main.js/", "/ui/main.js%00.css", "/ui/x",
    ],
)  # fmt: skip
def test_no_other_path_is_a_file(gateway: Gateway, path: str) -> None:
    """As it stands on the wire: most clients would clean it up."""
    wire = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=30)
    wire.request("GET", path)
    answer = wire.getresponse()
    assert answer.status == 404
    assert b"not_found" in answer.read()
    wire.close()


def test_the_package_behind_the_charts_is_never_imported() -> None:
    """Its script is found without running any of it."""
    code = "import sys; from app.ui.assets import Assets; Assets(); print('plotly' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_nothing_outside_is_named(path: Path) -> None:
    """No address of another host, and no file that is not served: the page works offline."""
    namespace = '"http://www.w3.org/2000/svg"'  # a name that no browser fetches
    text = path.read_text(encoding="utf-8").replace(namespace, "")
    assert re.findall(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", text, re.IGNORECASE) == []
    assert re.findall(r"@import|url\(", text) == []
    named = re.findall(r'\bui/([\w.-]+)"', text) + re.findall(r'from "\./([^"]+)"', text)
    assert set(named) - {*NAMES, PLOTLY} == set()


@pytest.mark.parametrize(
    "path", [path for path in OURS if path.suffix in (".js", ".html")], ids=lambda path: path.name
)
def test_nothing_keeps_a_key_or_makes_markup_of_data(path: Path) -> None:
    """No storage of a browser, no cookie, and no way from a text to an element or to code."""
    text = path.read_text(encoding="utf-8")
    storage = (
        r"localStorage|sessionStorage|indexedDB|document\.cookie|cookieStore|\bcaches\b|serviceW"
    )
    made = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    inline = r"<style|<script>|\son[a-z]+=\"|\sstyle=\""
    for pattern in (storage, made, inline):
        assert re.findall(pattern, text) == [], pattern


def keys_of(table: str) -> set[str]:
    """The names of a table of texts."""
    words = (FOLDER / "words.js").read_text(encoding="utf-8")
    found = re.search(rf"^const {table} = {{\n(.*?)^}};$", words, re.MULTILINE | re.DOTALL)
    assert found is not None
    return set(re.findall(r"^  (\w+):", found[1], re.MULTILINE))


def kinds_of_failures() -> set[str]:
    """What the sources call failures of candidates."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "app").rglob("*.py")]
    return set(re.findall(r'"(upstream_[a-z_]+)"', "".join(sources)))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("REASONS", set(Reason)),
        ("REMARKS", set(Remark)),
        ("STOPS", set(StopReason)),
        ("STREAMS", set(STREAMS)),
        ("CALLS", kinds_of_failures()),
    ],
)
def test_what_the_gateway_says_has_words(table: str, said: set[str]) -> None:
    """Each code that it can say, and no other: an unknown one would be shown as it is."""
    assert keys_of(table) == {str(code) for code in said}
