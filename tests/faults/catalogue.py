"""Fault catalogue: the expected response of the gateway for every mode, as data.

A row says what one candidate's mode comes to: an answer, or a failure with the status that the
client sees when no other candidate answers. Where the catalogue leaves a choice there are several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.kit.hostile.answers import TEXT
from tests.kit.hostile.documents import ORDERS, TEXTS
from tests.kit.hostile.events import SPLIT_TEXT
from tests.kit.hostile.heads import BAD_HEADS


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableAnswer:
    """The candidate's answer is usable."""

    text: str | None = TEXT  # None: no text is expected, a refusal or a tool call is
    votes: bool = True  # there is something to read in it
    counted: bool = True  # with its tokens
    void: str | None = None  # a reason for which the certificate may be void all the same
    blank: bool = False  # a set without another answer is void


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAnswer:
    """The candidate's answer is not usable."""

    status: int
    code: str
    retry_after: int | None = None  # seconds that the client must be told


Outcome = UsableAnswer | FailedAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What may come of a mode."""

    plain: tuple[Outcome, ...]
    stream: tuple[Outcome, ...]
    calls: int = 2  # of one candidate at most, retries included
    warm: bool = False  # a first request is needed, whose connection the second one takes
    speaks: bool = False  # the words of its error may reach the client

    @property
    def can_fail(self) -> bool:
        """Whether the candidate may give no usable answer."""
        return any(isinstance(each, FailedAnswer) for each in self.plain + self.stream)

    @property
    def must_be_late(self) -> bool:
        """Whether only the time for a call ends it."""
        return set(self.plain + self.stream) == {LATE}


def _row(*outcomes: Outcome, calls: int = 2, stream: tuple[Outcome, ...] | None = None) -> Row:
    return Row(plain=outcomes, stream=stream or outcomes, calls=calls)


OK: Final = UsableAnswer()
UNCOUNTED: Final = UsableAnswer(counted=False)
UNAVAILABLE: Final = FailedAnswer(status=503, code="upstream_unavailable")
TLS: Final = FailedAnswer(status=502, code="upstream_tls_error")
LATE: Final = FailedAnswer(status=504, code="upstream_timeout")
CUT: Final = FailedAnswer(status=502, code="upstream_disconnected")
BROKEN: Final = FailedAnswer(status=502, code="upstream_error")
BUSY: Final = FailedAnswer(status=503, code="upstream_error")
AUTH: Final = FailedAnswer(status=502, code="upstream_auth_error")
INVALID: Final = FailedAnswer(status=502, code="upstream_invalid_response")
REDIRECT: Final = FailedAnswer(status=502, code="upstream_redirect")
TOO_LARGE: Final = FailedAnswer(status=502, code="upstream_response_too_large")
ENCODED: Final = FailedAnswer(status=502, code="upstream_encoding")
PROTOCOL: Final = FailedAnswer(status=502, code="upstream_protocol_error")
EMPTY: Final = FailedAnswer(status=502, code="upstream_empty")


def _limited(retry_after: int | None = None) -> Row:
    return _row(FailedAnswer(status=429, code="upstream_rate_limited", retry_after=retry_after))


def _rejected(status: int) -> Row:
    said = (FailedAnswer(status=status, code="upstream_rejected"),)
    return Row(plain=said, stream=said, calls=1, speaks=True)


def _stream_only(*outcomes: Outcome, text: str = TEXT) -> Row:
    """Healthy unless a stream was asked for."""
    return Row(plain=(UsableAnswer(text=text),), stream=outcomes)


# Addresses of a candidate at which no HTTP server answers.
PLACES: Final[Mapping[str, Row]] = {
    "refused": _row(UNAVAILABLE),
    "black_hole": _row(UNAVAILABLE),
    "no_such_name": _row(UNAVAILABLE),
    "frozen": _row(LATE),
    "tls_to_a_plain_port": _row(TLS, calls=1),
    "bad_certificate": _row(TLS, calls=1),
}

# A dropped connection may be tried anew once beside the retry: it may have been stale.
_CONNECTIONS: Final[Mapping[str, Row]] = {
    "healthy": _row(OK, calls=1),
    "hang": _row(LATE),
    "latency:3": _row(LATE),
    "rst": _row(CUT, calls=3),
    "rst:after_head": _row(CUT),
    "close": _row(CUT, calls=3),
    "trickle_headers": _row(LATE),
    "slow_body": _row(LATE),
    "stall": _row(LATE),
    # An upstream may close an idle connection at any time; the call goes out anew, unseen.
    "close_after": Row(plain=(OK,), stream=(OK,), warm=True),
    "cut": _row(CUT),
    "cut:rst": _row(CUT),
    "unterminated": _row(CUT, stream=(UsableAnswer(text="4" * 16),)),
    "truncate": _row(CUT),
}
_STATUSES: Final[Mapping[str, Row]] = {
    "status:429": _limited(),
    "status:429:7": _limited(7),
    "status:429:9999": _limited(60),
    "status:429:soon": _limited(),
    "status:500": _row(BROKEN),
    "status:500:echo": _row(BROKEN),
    "status:502": _row(BROKEN),
    "status:503": _row(BUSY),
    "status:504": _row(BROKEN),
    "status:529": _row(BUSY),
    "status:400": _rejected(400),
    "status:400:echo": _rejected(400),
    "status:404": _rejected(404),
    "status:413": _rejected(413),
    "status:422": _rejected(422),
    "status:401": _row(AUTH, calls=1),
    "status:401:echo": _row(AUTH, calls=1),
    "status:403": _row(AUTH, calls=1),
    "redirect:302": _row(REDIRECT, calls=1),
    "redirect:307": _row(REDIRECT, calls=1),
}
_HEADS: Final[Mapping[str, Row]] = {
    "many_headers": _row(PROTOCOL),
    "big_header": _row(PROTOCOL),
    "interim:1000": _row(OK, PROTOCOL),
    **{f"bad_head:{name}": _row(PROTOCOL) for name in BAD_HEADS},
    # A space before the colon may be removed. What follows is a document for a stream, too.
    "bad_head:space": _row(PROTOCOL, OK, stream=(PROTOCOL, OK, INVALID)),
}
_BODIES: Final[Mapping[str, Row]] = {
    "bad_json": _row(INVALID),
    "truncated_json": _row(INVALID),
    "empty_body": _row(INVALID),
    "nan": _row(INVALID),
    "duplicate_keys": _row(INVALID),
    "deep": _row(INVALID),
    "latin": _row(INVALID),
    "not_openai": _row(INVALID),
    "error_in_200": _row(INVALID, BROKEN),
    "html": _row(INVALID),
    # By type it is no answer, by its first byte it is one.
    "wrong_type:text/plain": _row(OK, INVALID),
    "wrong_type:none": _row(OK, INVALID),
    "wrong_type:image/png": _row(OK, INVALID),
    "swap": _row(OK, INVALID, stream=(OK,)),
}
_FLOODS: Final[Mapping[str, Row]] = {
    "huge:64": _row(TOO_LARGE),
    "infinite": _row(TOO_LARGE, LATE),
    "endless_line": _row(TOO_LARGE, INVALID, LATE),
    "endless_comments": _row(TOO_LARGE, INVALID, LATE),
    "endless_headers": _row(PROTOCOL, LATE),
    "endless_status": _row(PROTOCOL, LATE),
    "bomb:gzip": _row(ENCODED),
    "bomb:deflate": _row(ENCODED),
}
_INTERIM_FLOODS: Final[Mapping[str, Row]] = {
    "interim:endless": _row(PROTOCOL, LATE),
}
_STREAMS: Final[Mapping[str, Row]] = {
    "sse:notjson": _stream_only(INVALID),
    "sse:number": _stream_only(INVALID),
    "sse:nan": _stream_only(INVALID),
    "sse:duplicate_keys": _stream_only(INVALID),
    "sse:bad_utf8": _stream_only(INVALID),
    "sse:no_blank": _stream_only(INVALID, CUT),
    "sse:no_final": _stream_only(CUT),
    "sse:no_end": _stream_only(CUT),
    "sse:nothing": _stream_only(CUT),
    "sse:only_done": _stream_only(CUT, EMPTY),
    "stream_error": _stream_only(BROKEN),
    "stream_error:first": _stream_only(BROKEN),
    "stream_error:done": _stream_only(BROKEN),
    **{
        f"sse:{name}": _stream_only(OK)
        for name in (
            "nodone", "after_done", "crlf", "cr", "no_space", "comments", "bom", "multi_line",
            "bytewise", "packed",
        )
    },
    "sse:split": _stream_only(UsableAnswer(text=SPLIT_TEXT), text=SPLIT_TEXT),
}  # fmt: skip
_DOCUMENTS: Final[Mapping[str, Row]] = {
    "null_content:null": _row(EMPTY),
    "null_content:missing": _row(EMPTY),
    "null_content:number": _row(INVALID, EMPTY),
    "null_content:list": _row(OK),  # parts of text, as some servers send: one text to clients
    "null_content:object": _row(INVALID, EMPTY),
    "null_content:no_message": _row(INVALID, EMPTY),
    "null_content:refusal": _row(UsableAnswer(text=None, votes=False)),
    "null_content:tool": _row(UsableAnswer(text=None, votes=False)),
    # Rows label a blank as a wrong answer, so it is no failure; a set of blanks alone misses.
    "blank": _row(UsableAnswer(text=" \n\t ", votes=False, blank=True)),
    "blank:empty": _row(UsableAnswer(text="", votes=False, blank=True)),
    "dup_choices": _row(OK),
    "extra_choices": _row(OK),
    "empty_choices": _row(EMPTY, stream=(EMPTY, CUT)),
    "odd_choices": _row(INVALID, EMPTY),
    # Another limit than the labelled one, unless the rows were labelled under the same.
    "finish:length": _row(UsableAnswer(void="conditions_differ:max_tokens")),
    "finish:content_filter": _row(OK),
    "finish:eos_token": _row(OK),
    # No answer ends so: what it says may be half of one.
    **{f"finish:{reason}": _row(CUT) for reason in ("bogus", "abort", "error", "null", "number")},
    "error_beside": _row(BROKEN),
    "bad_logprobs:positive": _row(OK),
    "bad_logprobs:short": _row(OK),
    "bad_logprobs:text": _row(OK),
    "bad_logprobs:list": _row(OK),
    "numbers:1e999": _row(OK, INVALID),
    f"numbers:{'9' * 5000}": _row(OK, INVALID),
    "no_usage": _row(UNCOUNTED),
    "usage:negative": _row(UNCOUNTED),
    "usage:text": _row(UNCOUNTED),
    "usage:texts": _row(UNCOUNTED),
    "usage:fraction": _row(UNCOUNTED),
    "usage:null": _row(UNCOUNTED),
    "usage:million": _row(OK),
    "usage:endless": _row(OK),
    "usage:details": _row(OK),
    "wrong_model": _row(OK),
    "forged": _row(OK),
    "inject": _row(UsableAnswer(text=ORDERS)),
    **{
        f"unicode:{name}": _row(UsableAnswer(text=text.replace("\ud800", "\ufffd")))
        for name, text in TEXTS.items()
    },
}

GROUPS: Final[Mapping[str, Mapping[str, Row]]] = {
    "connections": _CONNECTIONS,
    "statuses": _STATUSES,
    "heads": _HEADS,
    "bodies": _BODIES,
    "floods": _FLOODS,
    "interim_floods": _INTERIM_FLOODS,
    "streams": _STREAMS,
    "documents": _DOCUMENTS,
}
