"""Applications: the population to which a request belongs, and its terms.

An application is a group of the Mondrian calibration (see ``app.routing.groups``) with settings of
its own. A request belongs to one by the first of these that applies: the name that the request
gives, its API key, the digest of its system prompt and tools. Every other request belongs to
``default``. A key of an application cannot name another one: its requests are that application's
population, and the choice would otherwise be the client's. For the same reason no client can name
an application whose rows are drawn: they cover whatever belongs to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from app.access.api_keys import Caller
from app.errors import Forbidden, NotFound
from app.routing.prompt_digest import prompt_digest
from app.settings import DEFAULT, Application, Settings

HEADER: Final = "x-racer-application"
_NONE: Final = Application()


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The application of one request.

    Attributes:
        name: Its name; ``default`` for a request of no other.
        is_requested: The request names it, and neither its key nor its prompt says the same.
        terms: Its settings; those that are null are the configuration's.
        lacks_session: Its turns are together, and nothing says to which conversation it belongs.
        prompt_digest: Digest of a system prompt and tools that no application lists, where the
            digest would have decided; else None. It is in the response and never stored: a reader
            of the store could test guesses of the prompt.
    """

    name: str
    is_requested: bool = False
    terms: Application = field(default=_NONE, compare=False)
    prompt_digest: str | None = None
    lacks_session: bool = False

    def as_json(self) -> dict[str, Any]:
        """The fields of the wire form."""
        found = {"application": self.name}
        return (
            found if self.prompt_digest is None else found | {"prompt_digest": self.prompt_digest}
        )


class Applications:
    """Finds the application of requests.

    Args:
        settings: The configured applications.
    """

    def __init__(self, settings: Settings) -> None:
        self._terms = settings.applications
        self._of_key = {key: name for name, each in self._terms.items() for key in each.keys}
        self._of_prompt = {
            digest: name for name, each in self._terms.items() for digest in each.prompts
        }

    def of_request(
        self,
        requested: str | None,
        caller: Caller,
        fields: Mapping[str, Any],
        path: str,
    ) -> Membership | None:
        """The application of a request; None where none is configured.

        Args:
            requested: The name that the request gives, in its body or in the header ``HEADER``.
            caller: The owner of its API key.
            fields: The fields of its body that candidates are sent.
            path: The endpoint of candidates to which it goes.

        Raises:
            NotFound: The request names an application that is not configured.
            Forbidden: Its key belongs to another application than it names, or that one's rows are
                drawn and neither its key nor its prompt belongs to it.
        """
        names = [*self._terms, DEFAULT] if self._terms else []
        if requested is not None and requested not in names:
            known = f"; the applications are {names}" if caller.role == "admin" else ""
            raise NotFound(
                f"no application {requested[:128]!r}{known}",
                code="application_not_found",
                param="application",
            )
        if not self._terms:
            return None
        of_key = self._of_key.get(caller.name)
        if of_key is not None:
            if requested not in (None, of_key):
                raise Forbidden(f"this key belongs to the application {of_key!r}")
            return self._membership(of_key)
        digest = prompt_digest(fields, path)
        of_prompt = self._of_prompt.get(digest or "")
        if requested not in (None, of_prompt):
            found = self._membership(requested, is_requested=True)
            if found.terms.premise == "drawn":
                raise Forbidden(
                    f"the rows of the application {requested!r} cover all its requests: its keys "
                    "and prompts alone say which these are"
                )
            return found
        if of_prompt is not None or digest is None:
            return self._membership(of_prompt or DEFAULT)
        return Membership(name=DEFAULT, prompt_digest=digest)

    def _membership(self, name: str, *, is_requested: bool = False) -> Membership:
        terms = self._terms.get(name, _NONE)
        return Membership(name=name, is_requested=is_requested, terms=terms)
