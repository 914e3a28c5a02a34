"""Baseline proxy: a FastAPI gateway that only forwards, to the number of candidates in its path.

    python benchmarks/bare.py --upstream http://127.0.0.1:9001/v1 --port 9002

It has no keys, router, limits, metrics or error handling: its cost is the cost of HTTP in Python.
"""

import argparse
import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

HEADERS = {"content-type": "application/json"}


def create_app(upstream: str) -> FastAPI:
    """One route, which calls ``calls`` times and answers with the first."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            app.state.session = session
            yield

    app = FastAPI(lifespan=lifespan)

    async def call(body: bytes) -> bytes:
        async with app.state.session.post(url, data=body, headers=HEADERS) as answer:
            return await answer.read()

    async def events(body: bytes) -> AsyncGenerator[bytes]:
        async with app.state.session.post(url, data=body, headers=HEADERS) as answer:
            async for piece in answer.content.iter_any():
                yield piece

    url = f"{upstream}/chat/completions"

    @app.post("/{calls}/v1/chat/completions")
    async def chat(calls: int, request: Request) -> Response:
        body = await request.body()
        if b'"stream": true' in body:
            return StreamingResponse(events(body), media_type="text/event-stream")
        first, *_ = await asyncio.gather(*(call(body) for _ in range(calls)))
        return Response(first, media_type="application/json")

    @app.get("/healthz")
    async def healthy() -> Response:
        return Response()

    return app


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    app = create_app(args.upstream)
    uvicorn.run(app, port=args.port, access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
