"""From nothing but candidates to certified answers: calls, tokens, differences.

    PYTHONPATH=. python benchmarks/first_certificate.py
    PYTHONPATH=. python benchmarks/first_certificate.py --vllm .venv-vllm/bin/python

`racer serve --calibrate-from-traffic` before the demo's five models, in `transformers serve` or in
one vLLM server each. A client sends questions at a steady pace; the gateway samples, calibrates and
certifies by itself. Then every candidate is asked the same questions by name: what calling all of
them would have said and cost. `docs/figures/draw.py` draws both runs.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import rig
from verdict import table

from app import settings
from app.tools.demo import run
from tests.kit.gateway import ADMIN_KEY, ENVIRONMENT, Gateway
from tests.kit.zero_setup import (
    LETTERS,
    POOL,
    ServedRequest,
    ask,
    compared,
    configure,
    demo_pool,
    most_differing,
    questions,
)
from tests.vllm.servers import VllmServer, start_all, stopped_after

LAW = 0.99  # quantile of the number of differing answers
Runs = Mapping[str, Any]


@contextlib.contextmanager
def vllm_pool(python: Path, folder: Path, names: Sequence[str]) -> Generator[dict[str, str]]:
    """One vLLM server for each model, on the CPU; yields their addresses by name."""
    servers = [VllmServer(python.absolute(), run.FOLDER / "pool" / name, folder) for name in names]
    with stopped_after(servers):
        start_all(servers)
        yield {server.name: f"{server.url}/v1" for server in servers}


@contextlib.contextmanager
def serving(config: Path) -> Generator[Gateway]:
    """`racer serve --calibrate-from-traffic`, as a process."""
    traffic = {"same_answer": {"calibrate": "from_traffic"}}
    configured, _ = settings.load(config, ENVIRONMENT, **traffic)
    port, log = run.free_port(), config.with_suffix(".log")
    command = [sys.executable, "-m", "app", "serve", "--config", str(config)]
    command += ["--port", str(port), "--calibrate-from-traffic"]
    url = f"http://127.0.0.1:{port}"
    with run.child_process(command, log, ENVIRONMENT) as process:
        run.wait_until_ready(f"{url}/healthz", process, log)
        gateway = Gateway(url, configured)
        yield gateway
        gateway.close()


def sent(gateway: Gateway, asked: Sequence[str], per_s: float) -> list[ServedRequest]:
    """The answers to all questions, sent at a steady pace where the gateway keeps up."""
    begun, served = time.monotonic(), list[ServedRequest]()
    for number, query in enumerate(asked):
        time.sleep(max(0.0, begun + number / per_s - time.monotonic()))
        served.append(ask(gateway, query))
    return served


def first_run(gateway: Gateway, options: argparse.Namespace) -> dict[str, Any]:
    """What the client saw, and what calling all candidates would have been."""
    asked = questions(options.seed, options.requests + options.further, options.skills)
    served = compared(gateway, sent(gateway, asked, options.per_s))
    report = gateway.get("/same-answer", ADMIN_KEY).json()["data"]
    evidence = {each["id"]: each["evidence"] for each in report}
    first = next(place for place, each in enumerate(served) if each.calibration)
    certified = [each for each in served[first:] if each.calibration]
    by_calibration = {
        name: [each for each in certified if each.calibration == name] for name in evidence
    }
    return {
        "first": first + 1,
        "alpha": gateway.settings.same_answer.alpha if gateway.settings.same_answer else 0.05,
        "calibrations": [
            {
                "n": evidence[name]["n"],
                "rows": evidence[name]["rows"],
                "requests": len(own),
                "differing": sum(bool(each.differs) for each in own),
                "most": most_differing(len(own), evidence[name]["n"], evidence[name]["alpha"],
                                       1.0 - LAW),
            }
            for name, own in reversed(by_calibration.items()) if own
        ],
        "before": _means(served[:first], len(gateway.settings.pool)),
        "after": _means(certified, len(gateway.settings.pool)),
        "candidates": len(gateway.settings.pool),
        "pool_tokens": mean(each.pool_tokens for each in served),
        "series": {
            "calls": [each.calls for each in served],
            "tokens": [each.tokens for each in served],
            "pool_tokens": [each.pool_tokens for each in served],
            "sampled": [int(each.is_sampled) for each in served],
            "differs": [int(bool(each.differs)) for each in served],
            "certified": [int(each.calibration is not None) for each in served],
        },
    }  # fmt: skip


def _means(served: Sequence[ServedRequest], candidates: int) -> dict[str, float]:
    """Of each request, and of the share that differs; `all_calls` has the background's calls."""
    return {
        "requests": len(served),
        "calls": mean(each.calls for each in served),
        "all_calls": mean(candidates if each.is_sampled else each.calls for each in served),
        "tokens": mean(each.tokens for each in served),
        "pool_tokens": mean(each.pool_tokens for each in served),
        "differs": mean(bool(each.differs) for each in served),
    }


def markdown(found: Runs) -> str:
    """The run in one table."""
    calls, tokens = found["candidates"], found["pool_tokens"]
    rows = [
        (name, f"{each['requests']}", f"{each['calls']:.2f}", f"{each['all_calls']:.2f}",
         f"{each['tokens']:.0f} ({each['tokens'] / each['pool_tokens']:.0%})",
         f"{each['differs']:.3f}")
        for name, each in (("void, before", found["before"]), ("certified", found["after"]))
    ]  # fmt: skip
    rows.append(("the whole pool", "", f"{calls:.2f}", f"{calls:.2f}", f"{tokens:.0f} (100%)", "0"))
    head = ("", "requests", "calls", "calls with samples", "tokens", "different answers")
    law = "; ".join(
        f"{each['rows']} rows: {each['differing']} of {each['requests']} differed, at most "
        f"{each['most']} with probability {LAW:g}"
        for each in found["calibrations"]
    )
    return (
        f"Certified from request {found['first']} on, at alpha {found['alpha']:g}. "
        f"Calibrations: {law}.\n\n{table(head, rows)}"
    )


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=500, help="that the gateway begins with")
    parser.add_argument("--further", type=int, default=500, help="requests after them")
    parser.add_argument("--share", type=float, help="of requests that are sampled; else the usual")
    parser.add_argument("--per-s", type=float, default=5.0, help="requests a second")
    parser.add_argument("--skills", nargs="+", default=LETTERS, help="kinds of questions")
    parser.add_argument("--pool", nargs="+", default=POOL, help="models, with --vllm")
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--vllm", type=Path, metavar="PYTHON", help="of an environment with vLLM")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    changes = {} if options.share is None else {"watching": {"shadow_rate": options.share}}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pool = vllm_pool(options.vllm, folder, options.pool) if options.vllm else demo_pool(folder)
        urls = stack.enter_context(pool)
        prefix = "" if options.vllm else "pool/"
        config = configure(folder, urls, prefix=prefix, store=f"sqlite:///{folder}/racer.db",
                           **changes)  # fmt: skip
        gateway = stack.enter_context(serving(config))
        given = {
            name: value for name, value in vars(options).items() if name not in ("json", "vllm")
        }
        document = {
            "manifest": rig.manifest(**given),
            **first_run(gateway, options),
        }
    text = f"{rig.taken(document['manifest'])}.\n\n{markdown(document)}"
    rig.publish(document, text, options.json)


if __name__ == "__main__":
    main()
