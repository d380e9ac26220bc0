// A conversation's current output, beyond its stored messages: the root's stream, which carries all sub-agents too.

import { events, get, ofSession } from "./api.js";

const FIRST_WAIT = 500;
const LONGEST_WAIT = 10_000;

/** One reply of a model that is not stored yet. Its key is the id of the message it will become. */
class Reply {
  constructor() {
    /** @type {any[]} */
    this.chunks = [];
  }

  /** The reply so far. */
  read() {
    const calls = new Map();
    const sources = [];
    let text = "";
    let thinking = "";
    for (const chunk of this.chunks) {
      const call = chunk.toolCallId && (calls.get(chunk.toolCallId) ?? { id: chunk.toolCallId, written: "" });
      switch (chunk.type) {
        case "text_delta":
          text += chunk.delta;
          break;
        case "thinking":
          thinking += chunk.content;
          break;
        case "tool_arg_stream_start":
          calls.set(call.id, { ...call, name: chunk.toolName });
          break;
        case "tool_arg_stream_delta":
          calls.set(call.id, { ...call, written: call.written + chunk.delta });
          break;
        case "tool_start":
          calls.set(call.id, {
            ...call,
            name: chunk.toolName,
            arguments: chunk.arguments ?? null,
            begun: true,
          });
          break;
        case "tool_approval_request":
          calls.set(call.id, { ...call, name: chunk.toolName, arguments: chunk.input ?? null, waits: true });
          break;
        case "provider_tool_start":
          calls.set(call.id, { ...call, name: chunk.toolName, begun: true, byProvider: true });
          break;
        case "provider_tool_input":
          calls.set(call.id, { ...call, arguments: chunk.arguments ?? null });
          break;
        case "provider_tool_end":
          calls.set(call.id, { ...call, result: { content: chunk.result ?? null, error: chunk.error ?? false } });
          break;
        case "source":
          sources.push(chunk);
          break;
      }
    }
    return { text, thinking, calls: [...calls.values()], sources };
  }
}

const OF_A_REPLY = new Set([
  "text_delta",
  "thinking",
  "tool_arg_stream_start",
  "tool_arg_stream_delta",
  "tool_start",
  "tool_approval_request",
  "provider_tool_start",
  "provider_tool_input",
  "provider_tool_end",
  "source",
]);

/**
 * Follows a root session from where its stored messages end, and resumes from its cursor when a connection breaks.
 *
 * Emits `change` (something was said, in `detail.sessionId`), `commit` (messages were stored there), `reset` (what was
 * known is no longer valid), `rest` (the run ended or waits), `trouble` (an error, or null when it is over).
 */
export class Live extends EventTarget {
  #sessions = new Map();
  #results = new Map();
  #children = new Map();
  #cursor = 0;
  #wake = () => {};

  /** @param {string} rootId @param {AbortSignal} signal */
  constructor(rootId, signal) {
    super();
    this.rootId = rootId;
    this.signal = signal;
    this.following = false;
    /** Whether the conversation waits for an answer; then nothing in it runs. */
    this.waits = false;
  }

  /** The status of a child, given that of its reference: a child that has not ended waits with its root. */
  standing(status) {
    return this.waits && status === "running" ? "waiting" : status;
  }

  /**
   * The replies of a session that are not stored yet, by the id that their message gets.
   *
   * @returns {Map<string, Reply>}
   */
  replies(sessionId) {
    return this.#sessions.get(sessionId) ?? new Map();
  }

  /** A call's result, as far as it is known before it is stored. */
  result(callId) {
    return this.#results.get(callId);
  }

  /** The session that works on a call, as soon as it has started. */
  child(callId) {
    return this.#children.get(callId);
  }

  /** Drop the replies of a session that have become messages. */
  stored(sessionId, ids) {
    for (const id of ids) this.#sessions.get(sessionId)?.delete(id);
  }

  /** Look again, because something was done to the session. */
  nudge() {
    this.#wake();
  }

  async run() {
    let wait = FIRST_WAIT;
    while (!this.signal.aborted) {
      try {
        const going = await this.#look();
        this.#emit("trouble", null);
        wait = FIRST_WAIT;
        if (going) await this.#follow();
        else await this.#nudged();
      } catch (error) {
        if (this.signal.aborted) return;
        this.#emit("trouble", error);
        if (error.status === 401 || error.status === 404) return;
        await this.#nudged(wait);
        wait = Math.min(wait * 2, LONGEST_WAIT);
      }
    }
  }

  /** Load what the stream contains since the last commit; returns whether more is to come. */
  async #look() {
    const tail = await get(ofSession(this.rootId, "tail"), {}, this.signal);
    this.#sessions.clear();
    this.#results.clear();
    for (const { toolCallId, content, inParts, error } of tail.held) {
      this.#results.set(toolCallId, { content, inParts, error });
    }
    for (const chunk of tail.chunks) this.#take(chunk);
    this.#cursor = tail.sequence;
    this.following = tail.run?.status === "running";
    this.waits = tail.run?.status.startsWith("suspended") ?? false;
    this.#emit("reset");
    if (!this.following) this.#emit("rest");
    return this.following;
  }

  /** Read on from the cursor until the run ends, on whichever instance answers. */
  async #follow() {
    let wait = FIRST_WAIT;
    while (!this.signal.aborted) {
      const shown = await whileShown(this.signal);
      try {
        for await (const { name, data } of events(this.rootId, this.#cursor, shown)) {
          wait = FIRST_WAIT;
          if (name === "end") return;
          if (name !== "message") break;
          this.#cursor = data.sequence;
          if (data.type === "stream_resync" || data.type === "truncated") return;
          this.#take(data);
          this.#emit("trouble", null);
        }
      } catch (error) {
        if (this.signal.aborted) return;
        if (shown.aborted) continue;
        if (error.status && error.status !== 429 && error.status < 500) throw error;
        this.#emit("trouble", error);
      }
      // A nudge does not cut this short, because the stream reports whatever is done to the session.
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, LONGEST_WAIT);
    }
  }

  #take(chunk) {
    const sessionId = chunk.sessionId;
    switch (chunk.type) {
      case "step_discarded":
        this.#forget(chunk.fromSequence, chunk.toSequence);
        return;
      case "step_committed":
      case "run_started":
      case "run_resumed":
        this.#emit("commit", { sessionId });
        return;
      case "tool_end":
        this.#results.set(chunk.toolCallId, { content: chunk.result ?? null, inParts: chunk.inParts, error: false });
        break;
      case "tool_error":
        this.#results.set(chunk.toolCallId, { content: chunk.error, error: true });
        break;
      case "subagent_start":
        this.#children.set(chunk.toolCallId, {
          sessionId: chunk.childSessionId,
          agentType: chunk.childAgentType,
        });
        break;
      default:
        if (!OF_A_REPLY.has(chunk.type)) return;
        this.#reply(chunk).chunks.push(chunk);
    }
    this.#emit("change", { sessionId });
  }

  #reply(chunk) {
    const key = `${chunk.runId}.${chunk.step}`;
    if (!this.#sessions.has(chunk.sessionId)) this.#sessions.set(chunk.sessionId, new Map());
    const replies = this.#sessions.get(chunk.sessionId);
    if (!replies.has(key)) replies.set(key, new Reply());
    return replies.get(key);
  }

  /** Drop chunks that never happened, because their step is repeated. */
  #forget(first, last) {
    for (const [sessionId, replies] of this.#sessions) {
      for (const [key, reply] of replies) {
        reply.chunks = reply.chunks.filter((chunk) => chunk.sequence < first || chunk.sequence > last);
        if (!reply.chunks.length) replies.delete(key);
      }
      this.#emit("change", { sessionId });
    }
  }

  /** Wait for a nudge, or at most this long. */
  #nudged(longest) {
    return new Promise((resolve) => {
      this.#wake = resolve;
      this.signal.addEventListener("abort", resolve, { once: true });
      if (longest !== undefined) setTimeout(resolve, longest);
    });
  }

  #emit(name, detail = null) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

/**
 * Wait until the page is visible. The returned signal aborts when the page is hidden again: a browser has few
 * connections to one server, and tabs in the background would hold them all. Nothing is lost, because reading resumes
 * at the cursor.
 */
async function whileShown(signal) {
  const isHidden = () => document.visibilityState === "hidden";
  while (isHidden() && !signal.aborted) {
    await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
  }
  const hidden = new AbortController();
  const shown = AbortSignal.any([signal, hidden.signal]);
  document.addEventListener("visibilitychange", () => isHidden() && hidden.abort(), { signal: shown });
  return shown;
}
