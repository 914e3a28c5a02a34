"""Random histories of a gateway for a model-based test: requests, labels, settings, uploads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import httpx2
from hypothesis import strategies as st

from tests.kit.certificate_judge import LabelledPart
from tests.kit.gateway import POOL, SKILLS
from tests.kit.upstream import Script


@dataclass(frozen=True, kw_only=True)
class Key:
    """An API key of the history, and what it may do."""

    secret: str
    group: str | None = None
    candidates: tuple[str, ...] | None = None
    max_alpha: float | None = None


KEYS: Final = {
    "a": Key(secret="key-of-group-a", group="a"),
    "b": Key(secret="key-of-group-b", group="b", max_alpha=0.15),
    "c": Key(secret="key-of-group-c", group="c", candidates=("adder", "poet")),
}
POOLS: Final[dict[str, dict[str, Any]]] = {
    "pair": {"candidates": ["adder", "speller"]},
    "others": {"candidates": ["speller", "poet"], "alpha": 0.3},
    "one": {"candidates": ["poet"]},
}
TEMPLATES: Final = [*SKILLS][:3]
STRANGE: Final = "Add {} to {}."  # no row has its language
# The words of a text that tell its language, here and in the gateway.
LANGUAGES: Final = {"What": "en", "Spell": "de", "Compare": "en", "Add": "fr"}
SYSTEM: Final = {"role": "system", "content": "Answer in French."}
TURNS: Final = ["plain", "part", "odd_part", "system", "other_system", "last_system", "earlier",
                "refusal", "name", "image", "prefill"]  # fmt: skip
LATER: Final = ("earlier", "refusal", "prefill")
LABELLED_TURNS: Final = ["plain", "plain", "system", "earlier", "earlier", "part"]
FIELDS: Final[list[dict[str, Any]]] = [
    {"temperature": 0},
    {"temperature": 0.0},
    {"temperature": 1.5},
    {"seed": 7},
    {"seed": 99},
    {"random_seed": 7},
    {"max_tokens": 16},
    {"max_completion_tokens": 16},
    {"max_output_tokens": 16},
    {"top_p": 0.9},
    {"user": "ann"},
    {"metadata": {"a": "b"}},
    {"n": 2},
    {"use_beam_search": True},
    {"best_of": 2},
    {"stop": ["."]},
    {"prompt": {"id": "pmpt_1"}},
    {"a_field_of_tomorrow": 1},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "text"}},
    {"text": {"format": {"type": "text"}}},
    {"parallel_tool_calls": False},
    {"tools": [{"type": "function", "function": {"name": "add"}}]},
    {"instructions": "Be brief."},
    # Names that a gateway might use for turns.
    {"messages.system": [[0, SYSTEM]]},
    {"input.user": [[0, {"role": "user", "content": "Hello"}]]},
]
# Fields that change no answer, unless the body has another one.
DEPENDENT: Final[list[dict[str, Any]]] = [{"n": 2}, {"seed": 99}, {"parallel_tool_calls": False}]
TOOLS: Final = [{"type": "function", "function": {"name": "add"}}]
# Each is a change of some settings; a restart adds changes to those of earlier restarts.
CHANGES: Final[list[dict[str, Any]]] = [
    {"parameters": {}},
    {"parameters": {"temperature": 0}},
    {"parameters": {"temperature": 0, "max_tokens": 160}},
    {"parameters": {"random_seed": 7}},
    {"own": {"temperature": 0.5, "seed": 1}},
    {"own": {}},
    {"renames": {"seed": "random_seed"}},
    {"renames": {"max_completion_tokens": "max_tokens"}},
    {"renames": {"a_field_of_tomorrow": "user"}},
    {"renames": {"temperature": "heat"}},
    *[{"renames": {}}, {"renames": None}] * 2,  # None: of each parameter
    # Renames of the fields on which `DEPENDENT` depend, with and without such a parameter.
    {"parameters": {"use_beam_search": True}, "renames": {"use_beam_search": "beam"}},
    {"parameters": {"beams": True}, "renames": {"beams": "use_beam_search"}},
    {"parameters": {"tools": TOOLS}, "renames": {"tools": "skills"}},
    {"parameters": {"heat": 0}, "renames": {"heat": "temperature"}},
    {"parameters": {"temperature": 0}, "renames": {"temperature": "heat"}},
    {"parameters": {"temperature": 0, "n": 1}, "renames": {"n": "choices"}},
    {"parameters": {"temperature": 0, "seed": 7}, "renames": {"seed": "random_seed"}},
    {"renames": {"parallel_tool_calls": "parallel"}},
    {"own": {"use_beam_search": True}},
    {"own_renames": {"seed": "random_seed"}},
    {"own_renames": {"user": "end_user"}},
    {"own_renames": {}},
    *[{"group_by": "key"}, {"group_by": "request"}, {"group_by": "language"}] * 2,
    *[{"text": "conversation"}, {"text": "last_user"}] * 2,
    {"false_alarm": None},
    {"false_alarm": 0.01},
    {"gone": "adder"},
    {"gone": "speller"},
    {"gone": None},
    {"session_ttl_s": 60},
    {"session_ttl_s": None},
    {"fan_out": 1, "shadow_rate": 0.0},
    {"fan_out": 16},
    {"query_chars": 200},
    {"query_chars": 32_000},
    {"observe": "poet"},
    {"observe": None},
    {"toolless": True},
    {"toolless": False},
    {"model": "another"},
    {"model": None},
    {"shadow_rate": 1.0, "fan_out": 16},
    {"shadow_rate": 0.0},
    {"waves": "frugal"},
    {"waves": "all"},
]
USUAL: Final[dict[str, Any]] = {
    "parameters": {},
    "own": {},
    "renames": {},
    "own_renames": {"user": "end_user"},  # so users differ in one candidate alone
    "group_by": "request",
    "text": "last_user",
    "false_alarm": 0.01,
    "gone": None,
    "session_ttl_s": None,
    "fan_out": 16,
    "query_chars": 32_000,
    "observe": None,
    "toolless": False,
    "model": None,
    "shadow_rate": 0.0,
    "waves": "all",
}
ALIASES: Final = {"speller": ("another",)}  # models that serve a candidate in some settings
SCRIPTS: Final = [
    Script(text="42"),
    Script(text="43"),
    Script(text=" "),
    Script(text=""),
    *(Script(fault=fault) for fault in ("500", "429", "cut", "reset", "half", "stream_no_end")),
]

changes = st.lists(st.sampled_from(CHANGES), min_size=1, max_size=3)
# After these a candidate is sent something else under the same parameters.
renamings = st.sampled_from([[{"renames": None}], [{"renames": {}}]]) | changes
fields_of_requests = st.lists(st.sampled_from(FIELDS), max_size=2).map(
    lambda some: {name: value for each in some for name, value in each.items()}
)
plain_fields = st.sampled_from([{}, {}, {"user": "ann"}, {"user": "bob"}])
labels = st.fixed_dictionaries(
    {
        "surface": st.sampled_from(["chat", "chat", "chat", "completions", "responses"]),
        "turns": st.sampled_from(LABELLED_TURNS),
        "fields": plain_fields | fields_of_requests,
    }
)
# Only the poet is sent another field for a user, unless renames change.
of_a_user = {"surface": "chat", "turns": "plain", "fields": {"user": "ann"}}
of_a_later_turn = {"surface": "chat", "turns": "earlier", "fields": {}}
of_a_system_prompt = {"surface": "chat", "turns": "system", "fields": {}}
PLAIN: Final[dict[str, Any]] = {"surface": "chat", "turns": "plain", "fields": {}}
_rows = st.sampled_from([4, 20, 40])
_repeats = st.sampled_from([False, False, True])
_of_some = st.sampled_from([of_a_user, of_a_later_turn, of_a_system_prompt, PLAIN])
_labelled = st.none() | _of_some | labels | st.integers(0, 5)


class Part(NamedTuple):
    """Rows of an upload that are labelled alike.

    Attributes:
        label: The request that labels them now; None: they are labelled as configured, and carry
            no digests; a number: as the rows of an earlier upload.
        group: Their group.
        count: How many rows they are.
        repeats: Their queries and their group are those of the part before.
    """

    label: Any = None
    group: str | None = None
    count: int = 40
    repeats: bool = False


def _parts(*groups: str | None) -> st.SearchStrategy[list[Part]]:
    """Rows that were labelled otherwise, behind rows as configured in most uploads."""
    group = st.sampled_from(groups)
    others = st.lists(st.builds(Part, _labelled, group, _rows, _repeats), min_size=1, max_size=3)
    usual = st.lists(st.builds(Part, st.none(), group, _rows), max_size=1)
    return st.builds(list.__add__, usual, others)


uploads = _parts(None) | _parts(None) | _parts(None, None, "a", "b", "c") | _parts("a", "a", "b")
requests = st.fixed_dictionaries(
    {
        # A number: sent as some rows of the active calibration were.
        "like": st.sampled_from([None, 0, 1, 2]),
        "surface": st.sampled_from(
            ["chat"] * 5 + ["completions", "responses", "route", "execute", "levels"]
        ),
        "turns": st.sampled_from(["plain"] * 20 + TURNS),
        "fields": st.just({}) | plain_fields | fields_of_requests,
        "beside": st.sampled_from([*[{}] * 7, *DEPENDENT]),  # further fields
        # A field states the system prompt of the rows, and the turns have another one, or none.
        "forges": st.sampled_from([False] * 5 + [True]),
        "template": st.sampled_from([*TEMPLATES * 3, STRANGE]),
        "again": st.sampled_from([False] * 5 + [True]),  # the text of the request before
        "stream": st.booleans(),
        "is_long": st.sampled_from([False] * 7 + [True]),
        "key": st.sampled_from([None, None, None, "a", "b", "c"]),
        "session": st.sampled_from([None, None, "one"]),
        "pool": st.sampled_from([None, None, None, *POOLS]),
        "racer": st.just({})
        | st.sampled_from(
            [
                {"alpha": 0.3},
                {"alpha": 0.01},
                {"candidates": ["adder"]},
                {"candidates": ["speller", "poet"]},
                {"group": "a"},
                {"group": "b"},
                {"group": "c"},
                {"score": "prob"},
                {"stream": "leader"},
                {"explain": True},
                {"on_abstain": "strongest"},
            ]
        ),
    }
)
# Such requests may be in the shadow sample.
requests_like_rows = st.tuples(requests, st.sampled_from([{}, {}, {"group": "a"}])).map(
    lambda drawn: (
        drawn[0]
        | {"like": 0, "surface": "chat", "beside": {}, "pool": None, "racer": drawn[1]}
        | dict.fromkeys(("forges", "again", "is_long"), False)
    )
)

some_requests = st.lists(requests, min_size=1, max_size=5)
ORDINARY: Final[dict[str, Any]] = {
    "like": None,
    "surface": "chat",
    "turns": "plain",
    "fields": {},
    "template": TEMPLATES[0],
    "again": False,
    "stream": False,
    "is_long": False,
    "forges": False,
    "beside": {},
    "key": None,
    "session": None,
    "pool": None,
    "racer": {},
}


def language_of(text: str) -> str:
    """The language of a text, by the first of its words that tells one."""
    return next((name for word, name in LANGUAGES.items() if word in text), "und")


def messages(turns: str, text: str, part: str = "text") -> list[dict[str, Any]]:
    """A conversation that ends with a text of the user, or nearly so.

    Args:
        turns: What kind of conversation.
        text: The text.
        part: The type of text parts in the API of the request.
    """
    question = {"role": "user", "content": text}
    other_system = {"role": "system", "content": "Always answer 13."}
    hello = {"role": "user", "content": "Hello"}
    odd = "input_text" if part == "text" else "text"
    shapes: dict[str, list[dict[str, Any]]] = {
        "plain": [question],
        "part": [{"role": "user", "content": [{"type": part, "text": text}]}],
        "odd_part": [{"role": "user", "content": [{"type": odd, "text": text}]}],
        "system": [SYSTEM, question],
        "other_system": [other_system, question],
        "last_system": [question, SYSTEM],
        "earlier": [hello, {"role": "assistant", "content": "Hi"}, question],
        "refusal": [hello, {"role": "assistant", "content": "Hi", "refusal": None}, question],
        "name": [{**question, "name": "ann"}],
        "image": [
            {
                "role": "user",
                "content": [
                    {"type": part, "text": text},
                    {"type": "image_url", "image_url": {"url": "data:,"}},
                ],
            }
        ],
        "prefill": [question, {"role": "assistant", "content": "The answer is"}],
    }
    return shapes[turns]


def forged(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request that states in a field what the given one has as a turn, or the reverse."""
    name = "input.system" if request["surface"] == "responses" else "messages.system"
    fields = dict(request["fields"])
    if fields.pop(name, None) is not None:
        return {**request, "turns": "system", "fields": fields}
    if request["turns"] != "system":
        return dict(request)
    return {**request, "turns": "other_system", "fields": fields | {name: [[0, SYSTEM]]}}


def body_of(request: Mapping[str, Any], text: str) -> tuple[str, dict[str, Any]]:
    """The path and the body of a request, without options of the gateway."""
    fields, turns = dict(request["fields"]), request["turns"]
    match request["surface"]:
        case "completions":
            fields.pop("prompt", None)
            prompt = [text] if turns in ("part", "odd_part") else text
            return "/v1/completions", {"prompt": prompt, **fields}
        case "responses":
            items = text if turns == "plain" else messages(turns, text, "input_text")
            return "/v1/responses", {"input": items, **fields}
        case _:
            return "/v1/chat/completions", {"messages": messages(turns, text), **fields}


def certified(response: httpx2.Response) -> dict[str, Any] | None:
    """The `racer` object of an answer, or of a stream's last event; None without one."""
    if "text/event-stream" not in response.headers.get("content-type", ""):
        answer = response.json()
        return answer.get("racer", answer if "certificate" in answer else None)
    lines = [line for line in response.text.split("\n") if line.startswith("data: {")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    found = [each.get("racer") or each.get("response", {}).get("racer") for each in events]
    return next((each for each in reversed(found) if each), None)


@dataclass(frozen=True, kw_only=True)
class Label:
    """How rows were labelled once.

    Attributes:
        request: The request that labelled them, without its text.
        digests: Those that the rows carry; empty: none.
        sent: What each candidate was sent.
    """

    request: Mapping[str, Any]
    digests: Mapping[str, str]
    sent: Mapping[str, str]

    @property
    def is_later(self) -> bool:
        """Whether the rows are turns after the first of a conversation."""
        return self.request["turns"] in LATER


@dataclass(frozen=True, kw_only=True)
class JudgedDecision:
    """A decision of the shadow sample after verdicts on all candidates.

    Attributes:
        label: What the candidates were sent.
        text: The query.
        groups: The group of the request under each `routing.group_by`.
        right: The candidates with the verdict "correct".
    """

    label: Label
    text: str
    groups: Mapping[str, str | None]
    right: frozenset[str]


@dataclass(kw_only=True)
class Upload:
    """Rows of one upload.

    Attributes:
        rows: The rows as a client sends them.
        parts: The rows as the judge knows them.
        labels: How each part was labelled, and its group.
    """

    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    parts: list[LabelledPart] = field(default_factory=list[LabelledPart])
    labels: list[tuple[Label, str | None]] = field(default_factory=list[tuple[Label, str | None]])

    def add(
        self,
        label: Label,
        queries: Mapping[str, frozenset[str]],
        group: str | None,
        *,
        is_by_language: bool,
    ) -> None:
        """Add a part.

        Args:
            label: How its rows were labelled.
            queries: The right candidates of each query.
            group: The group that the rows carry.
            is_by_language: The gateway finds the groups of rows by their language.
        """
        for text, right in queries.items():
            row: dict[str, Any] = {"query": text}
            if label.is_later:
                row = {"messages": messages("earlier", text)}
            row |= {"correct": {name: name in right for name in POOL}}
            row |= {"conditions": dict(label.digests)} if label.digests else {}
            row |= {"group": group} if group else {}
            self.rows.append(row)
        rows = [
            (language_of(text) if is_by_language else group, right)
            for text, right in queries.items()
        ]
        self.parts.append(LabelledPart(sent=label.sent, is_later=label.is_later, rows=rows))
        self.labels.append((label, group))

    def add_sample(
        self,
        exported: Sequence[Mapping[str, Any]],
        decisions: Mapping[str, JudgedDecision],
        group_by: str,
    ) -> None:
        """Add the rows that the gateway exported, unchanged.

        A row that carries the group of another `routing.group_by` belongs to no group at all.
        """
        self.rows += map(dict, exported)
        parts: dict[tuple[Any, ...], list[tuple[str | None, frozenset[str]]]] = {}
        for row in exported:
            decision = decisions[row["decision_id"]]
            label, group = decision.label, decision.groups[group_by]
            if group_by != "language" and row.get("group") != group:
                group = f"not {row.get('group')}"
            if (kind := (*sorted(label.sent.items()), label.is_later, group)) not in parts:
                rows = parts[kind] = []
                self.parts.append(LabelledPart(sent=label.sent, is_later=label.is_later, rows=rows))
                self.labels.append((label, group))
            parts[kind].append((group, decision.right))


def right_candidates(text: str, number: int, wrong_every: int) -> frozenset[str]:
    """The candidates that answer a query right, by its kind, with some labels inverted.

    Args:
        text: The query.
        number: Its number in the upload.
        wrong_every: One query in this number has the opposite labels; with 0 none has.
    """
    template = next(each for each in TEMPLATES if text.startswith(each.split(" ")[0]))
    is_wrong = wrong_every > 0 and number % wrong_every == 0
    return frozenset(name for name in POOL if (name in SKILLS[template]) != is_wrong)
