// Calls to the server's routes, with the reader's own token if the server needs one.

const TOKEN = "helix.token";
const BASE = new URL(".", location.href.split("#")[0]);

/** A request that was refused, or that got no response (status 0). */
export class Refused extends Error {
  constructor(status, body) {
    super(body.error);
    this.status = status;
    this.code = body.code;
    this.detail = body.detail;
  }
}

const UNREACHABLE = {
  error: "The server cannot be reached.",
  detail: "It may be restarting, or the network may be down. This page keeps trying.",
  code: "unreachable",
};

/** Whether the reader gave a token; it is kept for this tab only, and is gone when the tab is closed. */
export function hasToken() {
  return sessionStorage.getItem(TOKEN) !== null;
}

export function setToken(token) {
  if (token === null) sessionStorage.removeItem(TOKEN);
  else sessionStorage.setItem(TOKEN, token);
}

async function send(path, options) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...options.headers, ...(token === null ? {} : { authorization: `Bearer ${token}` }) };
  let response;
  try {
    response = await fetch(new URL(path, BASE), { ...options, headers, cache: "no-store" });
  } catch (cause) {
    if (options.signal?.aborted) throw cause;
    throw new Refused(0, UNREACHABLE);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({
    error: `The server answered ${response.status}.`,
    detail: "This is not a response of an agent server; there may be a proxy in between.",
    code: "no_answer",
  }));
  // Then the server refuses not just this request, but everything this page would ask for.
  if (response.status === 401) dispatchEvent(new CustomEvent("helix:unauthenticated"));
  throw new Refused(response.status, body);
}

/** The path of a session's routes. */
export function ofSession(sessionId, what = "") {
  return `sessions/${encodeURIComponent(sessionId)}${what && `/${what}`}`;
}

/**
 * @param {string} path
 * @param {Object<string, string | number | null | undefined>} [query] null or empty values are left out
 */
export async function get(path, query = {}, signal = undefined) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") asked.set(name, String(value));
  }
  const response = await send(asked.size ? `${path}?${asked}` : path, { signal });
  return response.json();
}

export async function post(path, body) {
  const headers = { "content-type": "application/json" };
  const response = await send(path, { method: "POST", headers, body: JSON.stringify(body) });
  return response.json();
}

/** Send a DELETE request. */
export async function remove(path) {
  await send(path, { method: "DELETE" });
}

/**
 * The events of a session's stream after a sequence, until the server ends it or the connection breaks.
 *
 * @returns {AsyncGenerator<{name: string, data: any}>} chunks have the name `message`
 */
export async function* events(sessionId, after, signal) {
  const query = new URLSearchParams({ sessionId, fromSequence: String(after) });
  const response = await send(`sse?${query}`, { signal, headers: { accept: "text/event-stream" } });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let read = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const frames = (read + value).split("\n\n");
      read = frames.pop();
      for (const frame of frames) {
        const event = parsed(frame);
        if (event !== null) yield event;
      }
    }
  } catch (cause) {
    throw signal.aborted ? cause : new Refused(0, UNREACHABLE);
  } finally {
    // Disconnect a reader that has read enough, or the server would keep a place for it.
    reader.cancel().catch(() => {});
  }
}

/** One event; null for a comment, which only keeps the connection open. */
function parsed(frame) {
  let name = "message";
  const data = [];
  for (const line of frame.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  return data.length ? { name, data: JSON.parse(data.join("\n")) } : null;
}
