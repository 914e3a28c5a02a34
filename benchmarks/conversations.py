"""Whole conversations: what prompt caches spare, their risk, and the load of replicas.

    PYTHONPATH=. python benchmarks/conversations.py

Generated conversations (`tests/kit/conversations.py`) go through a gateway with four candidates
of three replicas each, whose servers keep every prompt that they have seen:

- `sessions`: clients send `x-session-id`; the rows are whole conversations.
- `prefixes`: they send none; a conversation stays with its replica, and each turn chooses anew.
- `before`: every call goes to the replica with the fewest calls.

Then `racer evaluate --conversations` compares both policies on more conversations, at equal risk.
Conversations, rows and sets follow from seeds; which replica is busy, and so what is cached, from
the clock, too.
"""

import argparse
import math
import tempfile
from collections import Counter
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Final

import rig
from verdict import Goal, aims, table

from racer_core.calibration.options import CalibrationOptions
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.conversations import conversation_rows as scored
from racer_core.offline.conversations import evaluate_conversations
from racer_core.offline.train import train
from racer_core.racer import Racer
from racer_core.types import Score
from tests.kit.conversations import (
    POOL,
    cached_share,
    calibrate,
    conversation_rows,
    losses,
    questions,
    recorded_loads,
    serve,
    servers,
)
from tests.kit.gateway import ENVIRONMENT, configure, running

ARMS: Final[dict[str, dict[str, Any]]] = {
    "sessions": {"max_load": 1.25, "session_ttl_s": 600},
    "prefixes": {"max_load": 1.25, "session_ttl_s": None},
    "before": {"max_load": None, "session_ttl_s": None},
}
REPLICAS: Final = 3
CACHED: Final = 75  # percent of the prompts' characters, at least
MAX_LOAD: Final = 1.25  # of the mean
SURE: Final = 3.1  # standard errors above alpha: by chance in one of 1000 runs
AT_ONCE: Final = 12  # conversations


def served(arm: str, folder: Path, artifact: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The measures of one arm."""
    own = ARMS[arm]
    with servers(REPLICAS, args.seconds) as its, recorded_loads() as loads:
        candidates = [{"name": name, "base_urls": [each.url for each in its]} for name in POOL]
        path = configure(
            folder / arm,
            artifact,
            "",
            candidates=candidates,
            routing={"score": "cover", "session_ttl_s": own["session_ttl_s"]},
            fleet={"max_load": own["max_load"], "connect_timeout_s": 60},
            limits={"route_timeout_s": 60},  # a busy machine calls no whole pool for that
        )
        with running(path, ENVIRONMENT) as gateway:
            calibrate(gateway, conversation_rows(100_000, args.rows), args.alpha)
            seeds = range(200_000, 200_000 + args.conversations)
            found = serve(gateway, seeds, at_once=AT_ONCE, sessions=arm == "sessions")
        turns = [each for conversation in found for each in conversation]
        risks = losses(found)
        calls = [len(each.requests) for each in its]
        return {
            "turns": len(turns),
            "cached": cached_share(its),
            "calls": mean(len(each.selected) for each in turns),
            "risk": mean(risks),
            "risk_se": stdev(risks) / len(risks) ** 0.5,
            "certified": mean(each.certificate["holds"] for each in turns),
            "units": dict(Counter(each.certificate["guarantee"]["unit"] for each in turns)),
            "above_bound": sum(not each.is_within(MAX_LOAD) for each in loads) / len(loads),
            "busiest": max(calls) / mean(calls),
        }


def evaluated(artifact: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Both policies on more conversations."""
    options = CalibrationOptions(score=Score.COVER)
    rows = conversation_rows(300_000, args.evaluated)
    turns = scored(Racer.load(artifact), rows, options, text="last_user")
    result = evaluate_conversations(turns, alphas=(0.05, 0.1, 0.2), splits=args.splits, seed=0)
    return result.as_json()


def goals(live: dict[str, Any], offline: dict[str, Any], args: argparse.Namespace) -> list[Goal]:
    """The targets of conversations in sessions.

    Given all conversations, alpha bounds the expected risk of random halves exactly. The risk of
    one calibration has no bound; that of the gateway's is compared with alpha by its own spread,
    that of its rows, and the normal distribution.
    """
    own = live["sessions"]
    spread = own["risk_se"] * math.sqrt(1 + args.conversations / args.rows)
    return [
        Goal("cached characters of prompts", 100 * own["cached"], CACHED, True, " %"),
        _risk("risk in the gateway, one calibration", own["risk"], args.alpha + SURE * spread),
        *(
            _risk(
                f"mean risk, {offline['splits']} calibrations, alpha {each['alpha']:g}",
                each["risk"],
                each["alpha"] + SURE * each["splits_se"],
            )
            for each in offline["measures"]
            if each["kept"]
        ),
        Goal("choices of a replica above its bound", 100 * own["above_bound"], 0, unit=" %"),
        Goal("busiest replica, calls / mean", own["busiest"], MAX_LOAD),
    ]


def _risk(name: str, risk: float, bound: float) -> Goal:
    """A target in percent, to a hundredth of them."""
    return Goal(name, 100 * risk, round(100 * bound, 2), unit=" %")


def report(live: dict[str, Any], offline: dict[str, Any]) -> str:
    """Two Markdown tables."""
    lines = [
        [
            arm,
            f"{each['cached']:.1%}",
            f"{each['calls']:.2f}",
            f"{each['risk']:.3f} ± {1.96 * each['risk_se']:.3f}",
            f"{each['certified']:.0%}",
            f"{each['above_bound']:.1%}",
            f"{each['busiest']:.2f}",
        ]
        for arm, each in live.items()
    ]
    heads = ["", "cached", "calls a turn", "risk", "certified", "above 1.25", "busiest replica"]
    compared = [
        [
            f"{each['alpha']:g}",
            "kept" if each["kept"] else "chosen at each turn",
            f"{each['risk']:.4f} ± {1.96 * each['risk_se']:.4f}",
            f"{each['calls']:.2f}",
            f"{each['cached']:.1%}",
        ]
        for each in offline["measures"]
    ]
    of_policies = table(["alpha", "candidates", "risk", "calls a turn", "cached"], compared)
    return f"{table(heads, lines)}\n\n{of_policies}"


def main() -> None:
    """Measure, and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--rows", type=int, default=200, help="conversations that calibrate")
    parser.add_argument("--conversations", type=int, default=80, help="conversations in each arm")
    parser.add_argument("--evaluated", type=int, default=1000, help="conversations of the splits")
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.1, help="of an answer")
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        artifact = folder / "artifact"
        rows, validation = questions(400_000, 800), questions(500_000, 400)
        train(rows, validation, artifact, encoder=CharNgramEncoder(), kind="knn")
        live = {arm: served(arm, folder, artifact, args) for arm in ARMS}
        offline = evaluated(artifact, args)
    options = {name: value for name, value in vars(args).items() if name != "json"}
    document = {"manifest": rig.manifest(**options), "live": live, "offline": offline}
    found = f"{aims(goals(live, offline, args))}\n\n{report(live, offline)}"
    rig.publish(document, f"{rig.taken(document['manifest'])}.\n\n{found}", args.json)


if __name__ == "__main__":
    main()
