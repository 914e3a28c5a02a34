/** Requests to the gateway that served this page, and what goes wrong with them. */

import { authorization } from "./keys.js";

/** An answer that is an error: its status, the gateway's code, and its sentence. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Where a path of the interface is, also behind a proxy that adds a prefix. */
function address(path) {
  return new URL(path.replace(/^\//, ""), document.baseURI);
}

/** Wait for a part of an answer; whatever breaks off on the way is an ApiError, too. */
async function arrived(part) {
  try {
    return await part;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The gateway cannot be reached.");
  }
}

/** A request with the key of a role; throws ApiError unless it is answered well. */
async function send(path, role, options = {}) {
  const { query = {}, headers = {}, ...rest } = options;
  const url = address(path);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  const response = await arrived(
    fetch(url, {
      ...rest,
      headers: { ...headers, ...authorization(role) },
      credentials: "omit",
      cache: "no-store",
    }),
  );
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** What an answer's envelope says; a proxy's own page says nothing. */
async function errorOf(response) {
  try {
    const { error } = await response.json();
    return new ApiError(response.status, error.code, error.message);
  } catch {
    return new ApiError(response.status, "unknown", `The answer was ${response.status} ${response.statusText}.`);
  }
}

/** GET some JSON. */
export async function getJson(path, role, signal) {
  return arrived((await send(path, role, { signal })).json());
}

/** GET some text. */
export async function getText(path, role, signal) {
  return arrived((await send(path, role, { signal })).text());
}

/** POST some JSON and read JSON; `keepalive` sends up to 64 KiB even where the page is closed meanwhile. */
export async function postJson(path, role, body, signal, keepalive = false) {
  const headers = { "content-type": "application/json" };
  const response = await send(path, role, { method: "POST", headers, body: JSON.stringify(body), signal, keepalive });
  return arrived(response.json());
}

/** POST a file of rows; options go into the address, which never holds a key. */
export async function postFile(path, role, file, query) {
  const body = new FormData();
  body.append("file", file);
  return arrived((await send(path, role, { method: "POST", body, query })).json());
}

/** DELETE something. */
export async function remove(path, role) {
  return arrived((await send(path, role, { method: "DELETE" })).json());
}

/** The JSON of each server-sent event, until the stream ends. */
export async function* events(path, role) {
  const response = await send(path, role);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await arrived(reader.read());
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ")) yield JSON.parse(part.slice("data: ".length));
    }
  }
}

/** What /readyz says, whatever its status: that it is not ready is an answer, too. */
export async function readiness() {
  const response = await arrived(fetch(address("readyz"), { cache: "no-store", credentials: "omit" }));
  return arrived(response.json());
}
