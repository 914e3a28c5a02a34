"""Fixtures: gateways in front of scripted candidates, stores, databases, the command line.

The router needs no weights. `tests/kit/__init__.py` says which fixture is for what.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import main
from app.same_answer import calibration as answer_calibration
from app.store import Store
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from tests.kit import databases
from tests.kit.case import GatewayCase, Shared, SharedGateways
from tests.kit.gateway import (
    ENVIRONMENT,
    ROWS,
    TRAINED,
    CalibratedStores,
    Command,
    Gateway,
    Restart,
    Serve,
    configure,
    labelled,
    noisy,
    running,
)
from tests.kit.memory import MEMORY, is_usable
from tests.kit.same_answer import talk
from tests.kit.upstream import FakePool


@pytest.fixture(scope="session")
def postgres() -> Iterator[databases.Postgres]:
    """PostgreSQL on a port of its own, for all tests of this process."""
    if databases.binaries() is None:
        pytest.skip(databases.WHY_NOT)
    with databases.postgres() as server:
        yield server


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder for the stores of long simulations: in memory where that can be."""
    if not is_usable():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="racer-tests-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def pgbouncer(postgres: databases.Postgres) -> Iterator[databases.PgBouncer]:
    """PgBouncer in transaction mode before it."""
    if databases.pgbouncer() is None:
        pytest.skip(databases.NO_POOLER)
    with databases.pooled(postgres) as pooler:
        yield pooler


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.scale)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store, of every kind that there is.

    PostgreSQL is behind PgBouncer where that is installed, for it forbids most.
    """
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'racer.db'}"
    url = request.getfixturevalue("postgres").create()
    if databases.pgbouncer() is None:
        return url
    return request.getfixturevalue("pgbouncer").url(url)


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    """An empty store of either kind."""
    with Store(database) as opened:
        yield opened


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A KNN router on character n-grams, trained on 200 rows: every start loads them."""
    folder = tmp_path_factory.mktemp("artifact")
    rows = labelled(0, TRAINED)
    train(rows, labelled(5_000, 200), folder, encoder=CharNgramEncoder(), kind="knn")
    return folder


@pytest.fixture(scope="session")
def noisy_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A router that is unsure: it learnt from noisy labels."""
    folder = tmp_path_factory.mktemp("noisy")
    train(noisy(0, 400), noisy(5_000, 200), folder, encoder=CharNgramEncoder(), kind="knn")
    return folder


@pytest.fixture(scope="session")
def shared_pool() -> Iterator[FakePool]:
    """Scripted candidates that run for the whole session; each test finds them reset."""
    with FakePool() as fake:
        yield fake


@pytest.fixture
def pool(shared_pool: FakePool) -> FakePool:
    """Scripted candidates; each answers 42 unless a test scripts another answer."""
    shared_pool.reset()
    return shared_pool


@pytest.fixture
def talking(pool: FakePool) -> Iterator[FakePool]:
    """Candidates that answer by the rule of ``tests/kit/same_answer.py``."""
    talk(pool)
    yield pool
    pool.answer = lambda _: "42"


@pytest.fixture
def few_fitting_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty rows are enough to fit a policy of `same_answer`: fewer requests in these tests."""
    monkeypatch.setattr(answer_calibration, "MIN_FITTING", 20)


@pytest.fixture(scope="session")
def shared_gateway(
    tmp_path_factory: pytest.TempPathFactory, artifact: Path, shared_pool: FakePool
) -> Iterator[Gateway]:
    """The gateway of the session; `gateway` gives it to tests with a reset pool."""
    path = configure(tmp_path_factory.mktemp("gateway"), artifact, shared_pool.url)
    with running(path, ENVIRONMENT) as gateway:
        gateway.calibrate()
        yield gateway


@pytest.fixture
def gateway(shared_gateway: Gateway, pool: FakePool) -> Gateway:
    """A gateway with both keys, calibrated on 400 rows at alpha 0.1; shared, so leave it so."""
    return shared_gateway


@pytest.fixture(scope="session")
def calibrated_stores(tmp_path_factory: pytest.TempPathFactory) -> CalibratedStores:
    """Stores that are copied instead of calibrated again."""
    return CalibratedStores(tmp_path_factory.mktemp("calibrated_stores"))


@pytest.fixture
def serve(
    tmp_path: Path, artifact: Path, pool: FakePool, calibrated_stores: CalibratedStores
) -> Iterator[Serve]:
    """Start gateways of one's own: ``serve(routing={...})`` changes the configuration.

    ``calibrated=False`` leaves out the 60 rows; ``environment`` holds the keys; ``artifact`` is
    another router; ``folder`` says where the store is, so that a second gateway finds the first's.
    """
    with ExitStack() as stack:
        count = 0

        def start(
            *,
            calibrated: bool = True,
            environment: dict[str, str] = ENVIRONMENT,
            artifact: Path = artifact,
            folder: Path | None = None,
            **changes: Any,
        ) -> Gateway:
            nonlocal count
            count += 1
            path = configure(folder or tmp_path / f"{count}", artifact, pool.url, **changes)
            if calibrated and folder is None:
                return stack.enter_context(calibrated_stores.running(path, environment))
            gateway = stack.enter_context(running(path, environment))
            if calibrated:
                gateway.calibrate(ROWS)
            return gateway

        yield start


@pytest.fixture
def restart(tmp_path: Path, artifact: Path, pool: FakePool) -> Restart:
    """Serve on the store of this test until the end of a ``with``: ``restart(routing={...})``."""

    def begin(
        *,
        artifact: Path = artifact,
        environment: dict[str, str] = ENVIRONMENT,
        **changes: Any,
    ) -> AbstractContextManager[Gateway]:
        return running(configure(tmp_path, artifact, pool.url, **changes), environment)

    return begin


@pytest.fixture(scope="session")
def shared_gateways(
    tmp_path_factory: pytest.TempPathFactory,
    calibrated_stores: CalibratedStores,
    shared_pool: FakePool,
) -> Iterator[SharedGateways]:
    """All gateways that tests of this process share."""
    gateways = SharedGateways(tmp_path_factory.mktemp("shared"), calibrated_stores, shared_pool)
    yield gateways
    gateways.stop()


@pytest.fixture
def shared(shared_gateways: SharedGateways, artifact: Path, pool: FakePool) -> Shared:
    """Cases on shared gateways: ``shared(aggregation={...})``, with the arguments of `serve`.

    Two tests with one configuration have one gateway. ``calibrated=False`` leaves out the 60 rows.
    Tests that each upload their own rows first name a ``group``, and have gateways of the group.
    """

    def case(*, artifact: Path = artifact, **changes: Any) -> GatewayCase:
        return shared_gateways.case(artifact, **changes)

    return case


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of tests marked ``anyio``."""
    return "asyncio"


@pytest.fixture
def racer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process: exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()  # what a gateway of the test said before
        monkeypatch.setattr("sys.argv", ["racer", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as exc:
            code = int(exc.code or 0)
        return code, *capsys.readouterr()

    for variable in ("RACER_DATA_KEY", "RACER_ADMIN_KEY", "RACER_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    return run
