"""Check of the ports: free, or served by a gateway already."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress

import httpx2

from app.settings import Settings
from app.tools.doctor.finding import Finding, failed, ok


def check(settings: Settings) -> list[Finding]:
    """Return a finding per listening socket."""
    findings = [check_port("port", settings.host, settings.port)]
    if (admin := settings.access.admin) is not None:
        if admin.port == settings.port:
            cure = "choose another `access.admin.port`"
            return [*findings, failed("admin port", f"{admin.port} is the gateway's own", cure)]
        findings.append(check_port("admin port", admin.host, admin.port))
    return findings


def check_port(check: str, host: str, port: int) -> Finding:
    """Bind the port for a moment, without accepting connections."""
    place = f"{host}:{port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                cure = "change `host` or `port`, or grant the user the right to bind it"
                return failed(check, f"{place} cannot be bound ({exc.strerror})", cure)
        else:
            return ok(check, f"{place} is free" if port else "0: the system picks a free port")
    if _is_gateway(host, port):
        return ok(check, f"a gateway serves at {place}")
    return failed(check, f"{place} is in use by another program", "choose another port with --port")


def _is_gateway(host: str, port: int) -> bool:
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    netloc = f"[{address}]" if ":" in address else address
    with suppress(httpx2.HTTPError, ValueError):
        answer = httpx2.get(f"http://{netloc}:{port}/healthz", timeout=2.0, trust_env=False)
        return answer.json() == {"status": "ok"}
    return False
