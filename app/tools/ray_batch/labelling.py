"""Labelling of many questions over a Ray cluster, with Ray Data."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import ray
import ray.data
from pydantic import TypeAdapter
from ray.exceptions import RayError

from app import settings
from app.errors import SettingsError
from app.tools.labelling.confidences import ConfidenceRecorder, RatingOptions, rating_plan
from app.tools.labelling.grading import GradingOptions, make_grader
from app.tools.labelling.labeller import Labeller
from app.tools.labelling.remote_labelling import LabelledQuestion, PendingQuestion, RemoteLabeller
from app.tools.labelling.run import conditions_of, remote_conditions
from app.tools.ray_batch.connection import joined, rows_of
from racer_core.errors import RacerError

JUDGE_KEY: Final = "RACER_JUDGE_KEY"
_PENDING: Final = TypeAdapter(PendingQuestion)
_LABELLED: Final[TypeAdapter[LabelledQuestion | str]] = TypeAdapter(LabelledQuestion | str)


def over_cluster(
    address: str,
    config: Path,
    grading: GradingOptions,
    concurrency: int,
    rating: RatingOptions | None = None,
) -> RemoteLabeller:
    """Questions are labelled by a process on each node, which shares the concurrency with the rest.

    Args:
        address: The cluster's.
        config: The configuration, which every node has at the same place, with its keys in the
            node's environment: none of them travels.
        grading: How answers are graded; a judge's key is the node's, too.
        concurrency: Questions under way at once, all processes together.
        rating: The evaluators that rate the answers; None for no ratings.
    """
    given = replace(grading, judge_key=None)

    def spread(
        questions: Sequence[PendingQuestion], conditions: Mapping[str, Any]
    ) -> Iterator[LabelledQuestion]:
        with joined(address):
            nodes = cast("list[dict[str, Any]]", ray.nodes())
            workers = max(1, min(sum(node["Alive"] for node in nodes), concurrency))
            tasks = concurrency // workers
            found = ray.data.from_items(
                [{"question": _PENDING.dump_json(each)} for each in questions],
                override_num_blocks=len(questions),
            ).map(
                cast("Any", _RayLabeller),  # a class is made once for each process
                fn_constructor_args=(config.absolute(), given, rating, conditions),
                compute=ray.data.ActorPoolStrategy(
                    size=workers,
                    max_tasks_in_flight_per_actor=tasks,
                    max_concurrent_calls_per_actor=tasks,
                ),
            )
            try:
                with closing(rows_of(found)) as rows:
                    for row in rows:
                        labelled = _LABELLED.validate_json(row["labelled"])
                        if isinstance(labelled, str):
                            raise SettingsError(f"a node of the cluster cannot ask: {labelled}")
                        yield labelled
            except RayError as exc:
                raise SettingsError(f"the cluster could not label: {exc}") from exc

    return spread


class _RayLabeller:
    """The local labeller, in one process of the cluster.

    An error of it is a value, for what is raised comes with its stack.
    """

    def __init__(
        self,
        config: Path,
        grading: GradingOptions,
        rating: RatingOptions | None,
        conditions: Mapping[str, Any],
    ) -> None:
        self._config = config
        self._grading = replace(grading, judge_key=os.environ.get(JUDGE_KEY))
        self._rating = rating
        self._conditions = conditions
        self._opening = asyncio.Lock()
        self._labeller: Labeller | None = None

    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {
            "labelled": _LABELLED.dump_json(
                await self._label(_PENDING.validate_json(row["question"]))
            )
        }

    async def _label(self, pending: PendingQuestion) -> LabelledQuestion | str:
        try:
            labeller = await self._opened()
        except RacerError as exc:
            return str(exc)
        correct = await labeller.label(pending.question, pending.notes)
        return LabelledQuestion(
            question=pending.question, notes=pending.notes, correct=correct, tally=labeller.take()
        )

    async def _opened(self) -> Labeller:
        """The labeller, opened by the first question; it ends with the process."""
        async with self._opening:
            if self._labeller is None:
                configured, secrets = settings.load(self._config, serves=False)
                grader, judge = make_grader(self._grading, configured, secrets)
                plan = rating_plan(self._rating, configured)
                own = conditions_of(configured, self._grading, judge)
                if own | remote_conditions(plan, configured) != self._conditions:
                    raise SettingsError(f"{self._config} has other candidates or parameters there")
                recorder = None
                if plan.models:
                    recorder = ConfidenceRecorder(plan, configured, secrets)
                    await recorder.__aenter__()
                    await recorder.check()
                labeller = Labeller(configured, secrets, await grader.__aenter__(), recorder)
                self._labeller = await labeller.__aenter__()
            return self._labeller
