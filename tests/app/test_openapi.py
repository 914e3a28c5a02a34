"""The interface description: public, complete, and about the same paths as the program."""

from __future__ import annotations

from app.api.routes import ROUTES
from app.route_table import JsonBody
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, UNDESCRIBED, Gateway, Serve

ENDPOINTS = {
    "/route": {"post"},
    "/v1/chat/completions": {"post"},
    "/v1/completions": {"post"},
    "/v1/responses": {"post"},
    "/v1/embeddings": {"post"},
    "/calibrate": {"post"},
    "/calibrations": {"get"},
    "/calibrations/{calibration_id}": {"get"},
    "/calibrations/{calibration_id}/activate": {"post"},
    "/feedback": {"post"},
    "/v1/models": {"get"},
    "/healthz": {"get"},
    "/readyz": {"get"},
    "/metrics": {"get"},
}


def test_the_page_answers_without_a_key(gateway: Gateway) -> None:
    """``/docs`` is HTML that loads the description."""
    page = gateway.get("/docs", None)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "/openapi.json" in page.text


def test_the_description_lists_every_endpoint(gateway: Gateway) -> None:
    """Every promised path with its methods, a summary each, and a model by its id."""
    document = gateway.get("/openapi.json", None).json()
    paths = {path: set(methods) for path, methods in document["paths"].items()}
    assert paths.items() >= ENDPOINTS.items()
    described = {f"{method.upper()} {path}" for path, of in paths.items() for method in of}
    assert described == {route.name for route in ROUTES} - UNDESCRIBED
    for methods in document["paths"].values():
        assert all(operation["summary"] for operation in methods.values())


def test_security_is_that_of_the_route_table(gateway: Gateway) -> None:
    """Every operation names the keys that open it; both are schemes that clients know."""
    document = gateway.get("/openapi.json", None).json()
    schemes = document["components"]["securitySchemes"]
    kinds = {name: (each["type"], each["scheme"]) for name, each in schemes.items()}
    assert kinds == {"data_key": ("http", "bearer"), "admin_key": ("http", "bearer")}
    keys = {"public": [], "data": ["data_key", "admin_key"], "admin": ["admin_key"]}
    named = {
        f"{method.upper()} {path}": operation["security"]
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    assert named == {
        route.name: [{key: []} for key in keys[route.role]]
        for route in ROUTES
        if route.name not in UNDESCRIBED
    }


def test_documented_security_matches_access_control(serve: Serve) -> None:
    """No key, a data key and an admin key pass access control exactly where the document says."""
    gateway = serve(calibrated=False)
    document = gateway.get("/openapi.json", None).json()
    presented = {None: None, "data_key": DATA_KEY, "admin_key": ADMIN_KEY}
    for name, key in presented.items():
        with gateway.http(key) as client:
            for path, operations in document["paths"].items():
                for method, operation in operations.items():
                    opened_by = [scheme for each in operation["security"] for scheme in each]
                    status = client.request(method, path, content=b"-").status_code
                    is_let_in = status not in (401, 403)
                    assert is_let_in == (not opened_by or name in opened_by), (method, path, name)


def test_bodies_are_described(gateway: Gateway) -> None:
    """The fields that a client may send stand in the schemas, and every reference resolves."""
    document = gateway.get("/openapi.json", None).json()

    def schema(path: str, kind: str = "application/json") -> dict[str, object]:
        return document["paths"][path]["post"]["requestBody"]["content"][kind]["schema"]

    assert {"query", "messages", "alpha", "score", "candidates", "execute"} <= set(
        schema("/route")["properties"]  # type: ignore[call-overload]
    )
    assert {"model", "messages", "stream", "racer"} <= set(
        schema("/v1/chat/completions")["properties"]  # type: ignore[call-overload]
    )
    assert {"rows", "alpha", "delta", "dry_run", "expected_active_id"} <= set(
        schema("/calibrate")["properties"]  # type: ignore[call-overload]
    )
    assert schema("/calibrate", "application/x-ndjson")
    assert schema("/calibrate", "multipart/form-data")


def test_every_reference_resolves(gateway: Gateway) -> None:
    """A tool that reads the description finds what it points at."""
    document = gateway.get("/openapi.json", None).json()

    def references(node: object) -> set[str]:
        if isinstance(node, dict):
            own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
            return own.union(*(references(value) for value in node.values()))
        return (
            set().union(*(references(value) for value in node)) if isinstance(node, list) else set()
        )

    for reference in references(document["paths"]):
        node = document
        for part in reference.removeprefix("#/").split("/"):
            assert part in node, reference
            node = node[part]


def test_the_body_of_a_row_is_the_body_that_its_handler_reads() -> None:
    """Red when a row of the route table names another body than its handler."""
    for route in ROUTES:
        code, names = route.handler.__code__, route.handler.__globals__
        read = [names[name] for name in code.co_names if isinstance(names.get(name), JsonBody)]
        assert read == ([] if route.body is None else [route.body]), route.name
