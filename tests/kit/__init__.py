"""What tests share: gateways, upstreams, rows, clients, databases, waiting.

How to write or convert a test module:

1. Import no other test module. What two modules need stands here, under the noun that it is about;
   what only one folder needs stands beside its tests (`tests/deploy/chart.py`).
2. Choose the cheapest thing that can fail:

   - a function or a class of the product, without a gateway: such tests are fast (see 5);
   - the application without a server and without a network: `services.application`;
   - a gateway that tests share: ``shared()``, or ``shared(aggregation={...})`` for another
     configuration;
   - a gateway of one's own: `serve`, with the same arguments, for tests that reload, restart, count
     from zero, or depend on what a gateway has learned;
   - the same store several times: ``with restart(routing={...}) as gateway:``;
   - a process: `racer serve` in a child, only where signals, exit codes or crashes are tested.

3. `shared` returns a `case.GatewayCase`. Two tests with one configuration have one gateway::

       def test_an_unsure_answer_is_no_promise(shared: Shared, pool: FakePool) -> None:
           case = shared(aggregation={"waves": "frugal"})
           pool.say("adder", "The sum is **42**.")
           answer = case.ask(TWO, {"explain": True})
           assert answer.reasons == ["no_vote"]
           assert case.decision(answer)["outcome"] == "answered"
           assert case.metrics().value("racer_requests_total", outcome="answered") == 1

   `ask` and `stream` give an `Answer`, checked for its status; `metrics` counts from the start of
   the case; `decision` waits for the record. `case.gateway` has the rest: official clients, raw
   requests, other endpoints. Tests that upload rows before they ask name a group, so that they
   leave others alone: ``shared(calibrated=False, group="uploads")``. `Gateway.upload` takes rows,
   `Gateway.once` takes them unless it is calibrated, and `Gateway.refused` says why they are not.
4. Candidates are scripted by `pool`, which every test finds reset: `say` an answer, `fail` with a
   status or a broken body, hold one at a gate (``gate=threading.Event()``). Wait by
   `waiting.wait_until`, never by a sleep. Bytes that break on purpose come from `hostile`.
5. `make test-fast` runs what needs no socket and no process: a test of `tests/core` or `tests/app`
   is fast unless it uses a fixture that opens one or stands in a module that `tests/conftest.py`
   lists. A fast test that listens or starts a process fails.
6. An async test is a coroutine in a module with ``pytestmark = pytest.mark.anyio``, or one that
   `loops.on_loop` runs on the loop of the gateway.

To convert a module: replace ``serve: Serve`` by ``shared: Shared`` and ``serve(...)`` by
``shared(...).gateway`` where rule 2 allows it, run the module twice in both orders, then replace
its local helpers by the methods of `GatewayCase`.
"""
