"""The interface description: public, complete, and about the same paths as the program."""

from __future__ import annotations

from app.api.routes import ROUTES
from app.route_table import JsonBody
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, UNDESCRIBED, Gateway, Serve


def test_the_description_lists_every_endpoint(gateway: Gateway) -> None:
    """Every route with a summary; `/docs` is HTML that loads the description."""
    document = gateway.get("/openapi.json", None).json()
    operations = {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert operations.keys() == {route.name for route in ROUTES} - UNDESCRIBED
    assert all(operation["summary"] for operation in operations.values())
    page = gateway.get("/docs", None)
    assert page.headers["content-type"].startswith("text/html")
    assert "/openapi.json" in page.text


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
