// A session's stored messages and those still being written; calls with their inputs and results, collapsed.

import { get, ofSession } from "./api.js";
import { button, empty, fill, h, json, problem, spelt } from "./dom.js";
import { status, when } from "./format.js";

const PAGE = 50;
const SUBAGENT = /^(subagent__|companion__)/;

/** A tool call: one line that opens to show its details. The same card is used before and after it is stored. */
class ToolCard {
  #shown = "";

  /** @param {Transcript} owner @param {string} id */
  constructor(owner, id) {
    this.owner = owner;
    this.known = { id };
    this.summary = h("summary");
    this.body = h("div.tool-body");
    this.below = null;
    this.el = h("details.tool", { "data-call": id }, this.summary, this.body);
    this.el.addEventListener("toggle", () => this.el.open && this.#open());
  }

  /** Take in news about the call; the card is redrawn only where something has changed. */
  update(news) {
    this.known = { ...this.known, ...news };
    const shown = JSON.stringify(this.known);
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.#draw();
  }

  get #state() {
    const { result, waits, begun } = this.known;
    if (result) return result.error ? "failed" : "done";
    if (waits) return "waiting";
    return begun ? "running" : "called";
  }

  #draw() {
    const { name = "a tool", result, child, code } = this.known;
    const state = this.#state;
    this.el.dataset.state = state;
    fill(
      this.summary,
      h("span.tool-name", null, child ? child.agentType : name.replace(SUBAGENT, "")),
      h("span.tool-hint", null, this.#hint()),
      code ? h("span.chip", null, code) : null,
      child ? h("span.chip", null, "sub-agent") : null,
      this.known.byProvider ? h("span.chip", null, "at the provider") : null,
      h("span.tool-state", null, state),
    );
    const given = this.known.arguments ?? parsed(this.known.written);
    fill(
      this.body,
      h("h4", null, "Arguments"),
      given === undefined || given === null || given === "" ? h("p.muted", null, "none") : json(given),
      this.known.edited ? [h("h4", null, "Edited by a person"), json(this.known.edited)] : null,
      result ? [h("h4", null, result.error ? "Error" : "Result"), ...outcome(result)] : null,
      child ? this.#childLink(child) : null,
      this.below?.el,
    );
    if (this.el.open) this.#open();
  }

  /** The start of the call's input, for its one line. */
  #hint() {
    const given = this.known.arguments ?? this.known.written ?? "";
    const text = typeof given === "string" ? given : JSON.stringify(given);
    return text === "{}" ? "" : text.slice(0, 160);
  }

  #childLink(child) {
    return h(
      "p.below",
      null,
      h("a", { href: `#/sessions/${encodeURIComponent(child.sessionId)}` }, `Open ${child.agentType}`),
      child.status ? status(this.owner.live.standing(child.status)) : null,
      h("code", null, child.sessionId),
    );
  }

  /** A sub-agent's own conversation is read when the reader opens it, and continues live below its call. */
  #open() {
    const { child } = this.known;
    if (!child || child.location === "remote" || this.below) return;
    this.below = new Transcript(child.sessionId, this.owner.live, this.owner.signal);
    this.below.el.classList.add("nested");
    this.body.append(this.below.el);
    this.below.reload();
  }
}

/** The conversation of one session, within the stream of its root. */
export class Transcript {
  /** @type {Map<number, any>} */
  #messages = new Map();
  #nodes = new Map();
  #cards = new Map();
  #drawn = new Map();
  #children = [];
  #hasMore = false;
  #loads = 0;
  /** Whether the messages are outdated; until they are read again, the view stays as it is. */
  #stale = true;
  #scheduled = false;
  #waiting = new Set();

  /**
   * @param {string} sessionId
   * @param {import("./live.js").Live} live
   * @param {AbortSignal} signal ends with the view
   */
  constructor(sessionId, live, signal) {
    this.sessionId = sessionId;
    this.live = live;
    this.signal = signal;
    this.earlier = h(
      "div.earlier",
      { hidden: true },
      button("Show earlier messages", () => this.#readEarlier(), "link"),
    );
    this.stored = h("ol.messages");
    this.coming = h("ol.messages");
    this.note = h("div");
    this.el = h(
      "section.transcript",
      { "aria-label": "Transcript" },
      this.earlier,
      this.stored,
      this.coming,
      this.note,
    );
    const mine = (event) => event.detail?.sessionId === sessionId;
    live.addEventListener("change", (event) => mine(event) && this.#schedule(), { signal });
    live.addEventListener("commit", (event) => mine(event) && this.refresh(), { signal });
    live.addEventListener("reset", () => this.reload(), { signal });
  }

  /** Set the calls that wait for an answer; they are marked in place. */
  setWaiting(callIds) {
    this.#waiting = new Set(callIds);
    this.#schedule();
  }

  /** Read new messages, now that the session is known to have this many. */
  expect(count) {
    const last = Math.max(0, ...this.#messages.keys());
    if (!this.#loads || count === last) return;
    if (count > last) this.refresh();
    else if (!this.live.following) this.reload();
  }

  /** Read the newest messages again; what was shown before stays until they arrive. */
  async reload() {
    this.#stale = true;
    await this.#load(async () => {
      const page = await this.#page(0);
      this.#stale = false;
      this.#messages = new Map();
      this.#nodes.clear();
      this.#take(page);
      this.#hasMore = page.hasMore;
    });
  }

  /** Read the messages that arrived since. */
  async refresh() {
    if (this.#stale) return this.reload();
    return this.#load(async () => {
      const last = Math.max(0, ...this.#messages.keys());
      for (let offset = 0, more = true; more;) {
        const page = await this.#page(offset);
        this.#take(page);
        offset += page.items.length;
        more = page.hasMore && last > 0 && page.items.at(-1).sequence > last + 1;
        if (last === 0) this.#hasMore = page.hasMore;
      }
    });
  }

  async #readEarlier() {
    if (this.#stale) return this.reload();
    return this.#load(async () => {
      const page = await this.#page(this.#messages.size);
      this.#take(page);
      this.#hasMore = page.hasMore;
    });
  }

  /** Of two overlapping loads, the later one counts. */
  async #load(read) {
    const turn = ++this.#loads;
    try {
      this.#children = (await get(ofSession(this.sessionId, "children"), {}, this.signal)).items;
      if (turn !== this.#loads) return;
      await read();
      fill(this.note);
    } catch (error) {
      if (this.signal.aborted) return;
      fill(
        this.note,
        problem(error, () => this.reload()),
      );
    }
    this.#draw();
  }

  #page(offset) {
    return get(ofSession(this.sessionId, "messages"), { offset, limit: PAGE }, this.signal);
  }

  #take(page) {
    for (const item of page.items) this.#messages.set(item.sequence, item);
  }

  #schedule() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    requestAnimationFrame(() => {
      this.#scheduled = false;
      this.#draw();
    });
  }

  // -- drawing

  #draw() {
    if (this.#stale) return;
    const atEnd = isAtEnd();
    const items = [...this.#messages.values()].sort((one, other) => one.sequence - other.sequence);
    const ids = new Set(items.map((item) => item.message.id).filter(Boolean));
    this.live.stored(this.sessionId, ids);
    const results = new Map();
    for (const { message } of items) if (message.role === "tool") results.set(message.toolCallId, message);
    const calls = new Set();
    const nodes = items.map((item) => this.#node(item, results, calls)).filter(Boolean);
    if (!same(this.stored, nodes)) fill(this.stored, nodes);
    this.#drawComing(results);
    this.earlier.hidden = !this.#hasMore;
    const nothing = !nodes.length && !this.coming.childElementCount && !this.note.childElementCount && this.#loads;
    if (nothing) fill(this.coming, h("li", null, empty("No messages yet.")));
    // A reader at the end of a growing reply stays there.
    if (atEnd && this.live.following) scrollTo({ top: document.documentElement.scrollHeight });
  }

  #node(item, results, calls) {
    const { message, sequence, createdAt } = item;
    if (message.role === "tool") {
      // A result is shown with its call, unless that is on an earlier page.
      if (calls.has(message.toolCallId)) return null;
      const card = this.#card(message.toolCallId, { name: message.toolName, ...stored(message) });
      return this.#kept(sequence, () => h("li.message", { "data-role": "tool" }, card.el));
    }
    for (const { id, name, arguments: given, result, error } of message.providerCalls ?? [])
      this.#card(id, {
        name,
        arguments: given,
        begun: true,
        byProvider: true,
        result: { content: result ?? null, error: error ?? false },
      });
    for (const call of message.toolCalls ?? []) {
      calls.add(call.id);
      const result = results.get(call.id);
      this.#card(call.id, {
        name: call.name,
        arguments: call.arguments,
        begun: true,
        ...(result ? stored(result) : {}),
      });
    }
    return this.#kept(sequence, () =>
      message.role === "user" ? said(message, createdAt) : this.#replied(message, createdAt),
    );
  }

  #kept(sequence, make) {
    if (!this.#nodes.has(sequence)) this.#nodes.set(sequence, make());
    return this.#nodes.get(sequence);
  }

  #replied(message, createdAt) {
    return h(
      "li.message",
      { "data-role": "assistant" },
      h(
        "header",
        null,
        h("b", null, "Assistant"),
        message.model ? h("span.muted", null, message.model) : null,
        when(createdAt),
      ),
      thought((message.thinking ?? []).map((each) => each.text).join("\n\n")),
      (message.providerCalls ?? []).map((call) => this.#card(call.id).el),
      message.text ? h("div.text", null, message.text) : null,
      sources(message.sources ?? []),
      (message.toolCalls ?? []).map((call) => this.#card(call.id).el),
      message.interrupted
        ? h(
            "p.muted",
            null,
            `Cut short by ${message.interrupted === "crash" ? "a crash" : `an ${message.interrupted}`}.`,
          )
        : null,
    );
  }

  /** Draw the replies being written, each in an element that stays while it grows. */
  #drawComing(results) {
    const shown = [];
    const replies = this.live.replies(this.sessionId);
    for (const key of this.#drawn.keys()) if (!replies.has(key)) this.#drawn.delete(key);
    for (const [key, reply] of replies) {
      const { text, thinking, calls, sources: found } = reply.read();
      if (!this.#drawn.has(key)) {
        const parts = {
          thinking: h("details.thinking", null, h("summary", null, "Thinking"), h("div.text")),
          text: h("div.text"),
          calls: h("div"),
          sources: h("div"),
        };
        const header = h("header", null, h("b", null, "Assistant"), h("span.writing", null, "writing"));
        this.#drawn.set(key, {
          ...parts,
          el: h("li.message", { "data-role": "assistant" }, header, parts.thinking, parts.text, parts.sources, parts.calls),
        });
      }
      const drawn = this.#drawn.get(key);
      drawn.thinking.hidden = !thinking;
      drawn.text.hidden = !text;
      setText(drawn.thinking.lastChild, spelt(thinking));
      setText(drawn.text, spelt(text));
      const cards = calls.map(({ id, ...news }) => this.#card(id, news).el);
      if (!same(drawn.calls, cards)) fill(drawn.calls, cards);
      const named = sources(found);
      if (drawn.sources.childElementCount !== named.length) fill(drawn.sources, named);
      shown.push(drawn.el);
    }
    for (const [callId, card] of this.#cards) {
      const result = this.live.result(callId);
      if (result && !results.has(callId)) card.update({ result });
    }
    if (!same(this.coming, shown)) fill(this.coming, shown);
  }

  #card(callId, news = {}) {
    if (!this.#cards.has(callId)) this.#cards.set(callId, new ToolCard(this, callId));
    const ref = this.#children.find((each) => each.toolCallId === callId) ?? this.live.child(callId);
    const card = this.#cards.get(callId);
    card.update({
      ...news,
      waits: this.live.waits || this.#waiting.has(callId) || Boolean(news.waits),
      ...(ref ? { child: ref } : {}),
    });
    return card;
  }
}

/** A call's arguments as far as the model has written them; as JSON once they are complete. */
function parsed(written) {
  try {
    return JSON.parse(written);
  } catch {
    return written;
  }
}

/** The stored outcome of a call. */
function stored(message) {
  const result = { content: message.content ?? null, inParts: message.inParts, error: message.error };
  return { result, code: message.code, edited: message.metadata?.edited_input };
}

/** What a call came to: data, or texts, images and files. */
function outcome({ content, inParts }) {
  return inParts ? content.map(shownPart) : [json(content ?? null)];
}

function shownPart(part) {
  return part.type === "text" ? h("div.text", null, part.text) : attached(part);
}

function said(message, createdAt) {
  const parts = typeof message.content === "string" ? [{ type: "text", text: message.content }] : message.content;
  const kind = message.metadata?.helix;
  const body = parts.map(shownPart);
  const header = h(
    "header",
    null,
    h("b", null, message.hidden ? "For the model only" : "User"),
    message.hidden
      ? h("span.chip", null, typeof kind === "string" ? `hidden · ${kind.replaceAll("_", " ")}` : "hidden")
      : null,
    when(createdAt),
  );
  if (!message.hidden) return h("li.message", { "data-role": "user" }, header, body);
  return h("li.message.hidden-message", { "data-role": "user" }, h("details", null, h("summary", null, header), body));
}

/** A file or picture: its description, not its contents. Nothing is fetched from its address. */
function attached(part) {
  const inline = part.url.startsWith("data:");
  const address = inline ? `${Math.round((part.url.length * 3) / 4 / 1024)} KB, in the message` : part.url;
  return h(
    "p.attached",
    null,
    h("span.chip", null, part.mediaType ?? part.media_type ?? part.type),
    part.filename ?? "",
    " ",
    h("code", null, address),
  );
}

/** What a reply refers to, each once. Nothing is fetched from its address. */
function sources(found) {
  const named = new Map(found.map((each) => [each.url ?? each.documentId ?? each.title, each]));
  return [...named].map(([address, each]) =>
    h("p.attached", null, h("span.chip", null, "source"), each.title ?? "", " ", h("code", null, address)),
  );
}

function thought(text) {
  return text ? h("details.thinking", null, h("summary", null, "Thinking"), h("div.text", null, text)) : null;
}

/** A growing text keeps its single node, so that the reader's selection in it survives. */
function setText(element, text) {
  const node = element.firstChild;
  if (node?.data !== undefined && text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else element.textContent = text;
}

function same(element, children) {
  return (
    element.children.length === children.length && children.every((child, place) => element.children[place] === child)
  );
}

function isAtEnd() {
  const { scrollTop, scrollHeight, clientHeight } = document.documentElement;
  return scrollHeight - scrollTop - clientHeight < 80;
}
