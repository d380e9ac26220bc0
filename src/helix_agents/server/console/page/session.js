// One conversation: its messages and live output, runs, checkpoints, sub-agents and state, and the available actions.

import { get, ofSession, post, remove } from "./api.js";
import { ask, attempt, say } from "./confirm.js";
import { button, empty, fill, h, json, problem } from "./dom.js";
import { brief, count, now, number, span, status, when } from "./format.js";
import { Decision, keyOf } from "./inbox.js";
import { Live } from "./live.js";
import { Transcript } from "./transcript.js";

const LOOK_AGAIN = 4_000;
const PAGE = 50;
const TABS = {
  transcript: "Transcript",
  runs: "Runs",
  checkpoints: "Checkpoints",
  agents: "Sub-agents",
  state: "State",
};

/**
 * @param {{caller: any, sessionId: string, tab: string, signal: AbortSignal, onSettled: () => void}} context
 */
export function session(context) {
  const view = new SessionView(context);
  view.begin();
  return view.el;
}

class SessionView {
  #decisions = new Map();
  #spent = null;
  #drawn = "";

  constructor({ sessionId, tab, signal, onSettled }) {
    Object.assign(this, { sessionId, signal, onSettled, tab: tab in TABS ? tab : "transcript" });
    this.head = h("div.session-head");
    this.note = h("div");
    this.pending = h("div.cards");
    this.queue = h("div.cards");
    this.panel = h("div.tab-panel");
    this.pending.hidden = this.queue.hidden = this.tab !== "transcript";
    this.el = h("div.view", null, this.head, this.note, this.#tabs(), this.pending, this.panel, this.queue);
    this.live = null;
  }

  async begin() {
    try {
      this.detail = await get(ofSession(this.sessionId), {}, this.signal);
    } catch (error) {
      if (this.signal.aborted) return;
      const missing = empty(
        "There is no such session.",
        "It was deleted, its id is misspelt, or it belongs to another user and only its owner can read it.",
      );
      fill(this.el, error.status === 404 ? missing : problem(error, () => location.reload()));
      return;
    }
    this.live = new Live(await this.#speaksIn(), this.signal);
    this.live.addEventListener("rest", () => this.look(), { signal: this.signal });
    this.live.addEventListener("commit", () => this.look(), { signal: this.signal });
    this.live.addEventListener("trouble", ({ detail }) => fill(this.note, detail ? problem(detail) : null), {
      signal: this.signal,
    });
    this.#draw();
    this.#open();
    this.#countTokens();
    this.#lookAtQueue();
    this.live.run();
    const timer = setInterval(() => document.visibilityState === "visible" && this.look(), LOOK_AGAIN);
    this.signal.addEventListener("abort", () => clearInterval(timer));
  }

  /** Sub-agents write to the stream of their root; companions that work in the background have their own. */
  async #speaksIn() {
    const { parentSessionId, rootSessionId } = this.detail;
    if (!parentSessionId) return this.sessionId;
    const { streamStatus } = await get(ofSession(this.sessionId, "tail"), {}, this.signal);
    return streamStatus === undefined ? rootSessionId : this.sessionId;
  }

  /** Read the session's status; if it has started to run since, follow it. */
  async look() {
    const before = this.detail.run;
    try {
      this.detail = await get(ofSession(this.sessionId), {}, this.signal);
    } catch (error) {
      if (!this.signal.aborted)
        fill(
          this.note,
          problem(error, () => this.look()),
        );
      return;
    }
    const { run } = this.detail;
    if (!this.live.following && (run?.runId !== before?.runId || run?.status === "running")) this.live.nudge();
    if (run?.runId !== before?.runId || run?.status !== before?.status) {
      this.#countTokens();
      if (this.tab !== "transcript") this.#open();
    }
    this.#draw();
    await this.#lookAtQueue();
  }

  /** Messages that wait until the conversation is free; a sub-agent has none. */
  async #lookAtQueue() {
    if (this.detail.parentSessionId || this.queue.hidden) return;
    try {
      const { items } = await get(ofSession(this.sessionId, "queue"), {}, this.signal);
      fill(this.queue, items.length ? this.#waitingMessages(items) : null);
    } catch {
      // The next look asks again; the conversation itself shows when the server is unreachable.
    }
  }

  #waitingMessages(turns) {
    const held = isStopped(this.detail);
    const row = (turn) => {
      const text = turn.messages.map((message) => said(message.content)).join("\n\n");
      const place = ofSession(this.sessionId, `queue/${encodeURIComponent(turn.runId)}`);
      const act = (work, done) => async () => {
        await attempt(work, done);
        await this.#lookAtQueue();
      };
      const change = (body, done) => act(() => post(place, body), done);
      const word = turn.steers ? "for the running turn" : "for a turn of its own";
      return h(
        "div.queued",
        null,
        h("p", null, text),
        h("small", null, `${word}, `, when(turn.queuedAt)),
        turn.steers
          ? button("Answer later", change({ steers: false }, "It waits for a turn of its own."))
          : button("Give to the turn", change({ steers: true }, "The running turn takes it in with its next step.")),
        button("Take back", act(() => remove(place), "Taken back.")),
      );
    };
    return h(
      "article.card",
      null,
      h("h2", null, turns.length === 1 ? "1 message waits" : `${turns.length} messages wait`),
      held ? h("p", null, "The session was stopped, so they are held until its next turn.") : null,
      turns.map(row),
    );
  }

  async #countTokens() {
    try {
      this.#spent = (await get(ofSession(this.sessionId, "usage"), {}, this.signal)).tokens;
      this.#draw();
    } catch {
      // This server no longer knows the agent: the figure is left out, and everything else is shown.
    }
  }

  // -- head

  #draw() {
    const { detail } = this;
    const waiting = detail.pending.filter((call) => call.state === "waiting");
    this.#drawPending(waiting);
    this.transcript?.setWaiting(waiting.map((call) => call.toolCallId));
    this.transcript?.expect(detail.messageCount);
    const shown = JSON.stringify([detail, this.#spent]);
    if (shown === this.#drawn) return;
    this.#drawn = shown;
    const chips = detail.tags.map((tag) => h("span.chip", null, tag));
    fill(
      this.head,
      this.#crumbs(),
      h(
        "div.title",
        null,
        h("h1", null, detail.agentType),
        detail.heldBy ? h("span.chip", { title: "It was handed over to this agent" }, `→ ${detail.heldBy}`) : null,
        status(this.#standing),
        chips,
        h("span.spacer"),
        this.#actions(),
      ),
      this.#facts(),
      detail.status === "failed" ? failure(detail) : null,
    );
  }

  get #standing() {
    const { run, status: stands } = this.detail;
    return stands === "active" && run ? run.status : stands;
  }

  #crumbs() {
    const { rootSessionId, parentSessionId } = this.detail;
    const link = (id) => h("a", { href: `#/sessions/${encodeURIComponent(id)}` }, h("code", null, id));
    const above = [...new Set([rootSessionId, parentSessionId])].filter((id) => id && id !== this.sessionId);
    const copy = h("button.link", { type: "button", title: "Copy the id" }, "copy");
    copy.addEventListener("click", () => navigator.clipboard.writeText(this.sessionId).then(() => say("Copied.")));
    const here = [h("code", null, this.sessionId), navigator.clipboard ? copy : null];
    return h(
      "nav.crumbs",
      { "aria-label": "Location" },
      h("a", { href: "#/sessions" }, "Sessions"),
      above.map(link),
      here,
    );
  }

  #facts() {
    const { detail } = this;
    const { run } = detail;
    const spent = this.#spent;
    const fact = (name, ...value) => h("div", null, h("dt", null, name), h("dd", null, ...value));
    return h(
      "dl.facts",
      null,
      fact("Started", when(detail.createdAt)),
      fact("Last change", when(detail.updatedAt)),
      fact("Turn", run ? number(run.turn) : "–"),
      fact("Steps", number(detail.stepCount)),
      fact("Messages", number(detail.messageCount)),
      spent
        ? fact(
            "Tokens",
            h("span", { title: `${number(spent.prompt)} in, ${number(spent.completion)} out` }, brief(spent.total)),
          )
        : null,
      detail.userId ? fact("User", detail.userId) : null,
      detail.expiresAt ? fact("Expires", when(detail.expiresAt)) : null,
    );
  }

  #actions() {
    const { run, status: stands, parentSessionId, rootSessionId, pending } = this.detail;
    if (parentSessionId)
      return h("a.button", { href: `#/sessions/${encodeURIComponent(rootSessionId)}` }, "Open the root session to act");
    const going = run?.status === "running";
    const suspended = run?.status.startsWith("suspended");
    const answered = suspended && !pending.some((call) => call.state === "waiting");
    return h(
      "div.actions",
      null,
      stands === "failed" && !isStopped(this.detail)
        ? button("Retry", () => this.#do("retry", {}, "The run continues from its last commit."), "primary")
        : null,
      stands === "interrupted" || stands === "paused" || answered
        ? button("Resume", () => this.#do("resume", {}, "The session continues."), "primary")
        : null,
      going || suspended ? button("Interrupt", () => this.#interrupt(Boolean(suspended))) : null,
      going || suspended ? button("Abort…", () => this.#abort(), "danger-quiet") : null,
    );
  }

  async #interrupt(suspended) {
    const lost =
      "Pending calls are given up and can no longer be answered. " +
      "Everything else is kept, and Resume continues the session.";
    if (
      suspended &&
      (await ask({ title: "Interrupt this session?", text: lost, action: "Interrupt", danger: true })) === null
    )
      return;
    await this.#do("interrupt", { reason: "interrupted in the console" }, stopped);
  }

  async #abort() {
    const question = {
      title: "Abort this run?",
      text: "The run fails for good, with everything below it. Pending calls are given up. What was stored is kept.",
      action: "Abort the run",
      danger: true,
      field: { label: "Reason (optional)" },
    };
    const reason = await ask(question);
    if (reason !== null) await this.#do("abort", reason ? { reason } : {}, stopped);
  }

  async #do(route, body, done) {
    await attempt(() => post(route, { sessionId: this.sessionId, ...body }), done);
    await this.look();
    this.live.nudge();
  }

  #drawPending(waiting) {
    const keys = new Set(waiting.map(keyOf));
    for (const [key, decision] of this.#decisions) {
      if (keys.has(key) || decision.settled) continue;
      if (decision.isBeingAnswered) decision.gone();
      else {
        decision.el.remove();
        this.#decisions.delete(key);
      }
    }
    for (const call of waiting) {
      if (this.#decisions.has(keyOf(call))) continue;
      const linked = call.sessionId !== this.sessionId;
      const decision = new Decision(call, { linked, onSettled: () => this.#settled() });
      this.#decisions.set(keyOf(call), decision);
      this.pending.append(decision.el);
    }
    for (const decision of this.#decisions.values()) decision.tick();
  }

  async #settled() {
    this.onSettled();
    await this.look();
    this.live.nudge();
  }

  // -- tabs

  #tabs() {
    const to = (tab) => `#/sessions/${encodeURIComponent(this.sessionId)}${tab === "transcript" ? "" : `/${tab}`}`;
    const links = Object.entries(TABS).map(([tab, label]) =>
      h("a", { href: to(tab), "aria-current": tab === this.tab ? "page" : null }, label),
    );
    return h("nav.tabs", { "aria-label": "Parts of the session" }, links);
  }

  #open() {
    if (this.tab === "transcript") {
      this.transcript = new Transcript(this.sessionId, this.live, this.signal);
      this.#draw();
      fill(this.panel, this.transcript.el);
    } else if (this.tab === "runs") this.#list("runs", (run) => this.#run(run), empty("No runs yet."));
    else if (this.tab === "checkpoints") this.#checkpoints();
    else if (this.tab === "agents") this.#agents();
    else this.#state();
  }

  /** A listing of the session, with further pages on demand. */
  async #list(what, draw, none, last = null) {
    const list = h("div.rows");
    const more = h("p.center");
    fill(this.panel, list, more);
    const read = async (offset) => {
      try {
        const page = await get(ofSession(this.sessionId, what), { offset, limit: PAGE }, this.signal);
        list.append(...page.items.map(draw));
        if (!page.total) fill(list, none);
        fill(more, page.hasMore ? button("Show more", () => read(offset + page.items.length)) : null);
        if (!page.hasMore && last) list.append(last());
      } catch (error) {
        if (!this.signal.aborted)
          fill(
            more,
            problem(error, () => read(offset)),
          );
      }
    };
    await read(0);
  }

  #run(run) {
    const lasted = (run.endedAt ?? now()) - run.startedAt;
    const used = h("div");
    const more = h(
      "div.row-body",
      null,
      run.error ? h("p.bad", null, run.error) : null,
      h(
        "p.muted",
        null,
        "Run ",
        h("code", null, run.runId),
        run.workflowId ? [", workflow ", h("code", null, run.workflowId)] : null,
      ),
      used,
      run.output === undefined ? null : [h("h4", null, "Output"), json(run.output)],
    );
    const el = h(
      "details.row-details",
      null,
      h(
        "summary.row",
        null,
        // Only the newest turn can still wait: an earlier one was answered, or its calls were given up.
        status(run.status.startsWith("suspended") && run.runId !== this.detail.run?.runId ? "waited" : run.status),
        h(
          "span.row-main",
          null,
          h("b", null, `Turn ${number(run.turn)}`),
          run.attempt > 1 ? h("span.chip", null, `attempt ${run.attempt}`) : null,
        ),
        h(
          "span.row-more",
          null,
          run.error || (run.completionReason && run.completionReason !== run.status)
            ? h("span.muted", null, run.error ?? run.completionReason)
            : null,
        ),
        h("span.row-count", null, `${count(run.stepCount, "step")} · ${span(lasted)}`),
        when(run.startedAt),
      ),
      more,
    );
    el.addEventListener("toggle", () => el.open && this.#usageOf(run, used), { once: true });
    return el;
  }

  async #usageOf(run, place) {
    try {
      const { items } = await get("usage", { sessionId: this.sessionId, runId: run.runId, days: 366 }, this.signal);
      const several = new Set(items.map((each) => each.agentType)).size > 1;
      const lines = items.map((each) =>
        h(
          "li",
          null,
          several && each.agentType ? `${each.agentType}: ` : null,
          h("b", null, each.sourceName),
          ` ${count(each.calls, "call")}`,
          each.sourceType === "tokens"
            ? `, ${number(each.tokens.prompt)} tokens in, ${number(each.tokens.completion)} out`
            : "",
          each.failures ? `, ${number(each.failures)} failed` : "",
        ),
      );
      fill(
        place,
        h("h4", null, "Usage, without sub-agents"),
        lines.length ? h("ul.plain", null, lines) : h("p.muted", null, "none"),
      );
    } catch (error) {
      if (!this.signal.aborted)
        fill(
          place,
          problem(error, () => this.#usageOf(run, place)),
        );
    }
  }

  #checkpoints() {
    const point = (label, checkpointId, facts, at) =>
      h(
        "div.row",
        null,
        h("span.row-main", null, h("b", null, label), h("code", null, checkpointId)),
        h("span.row-count", null, facts),
        at,
        h(
          "span.actions",
          null,
          button("Branch…", () => this.#branch(checkpointId)),
          this.detail.parentSessionId
            ? null
            : button("Rewind…", () => this.#rewind(checkpointId, label), "danger-quiet"),
        ),
      );
    this.#list(
      "checkpoints",
      (each) =>
        point(
          `Step ${number(each.stepCount)}`,
          each.checkpointId,
          count(each.messageCount, "message"),
          when(each.createdAt),
        ),
      empty("No checkpoints yet.", "Every committed step creates one."),
      () => point("The beginning", "beginning", "no messages", h("span")),
    );
  }

  async #rewind(checkpointId, label) {
    const text =
      `The conversation goes back to ${label.toLowerCase()}, with the state it had there. Everything after that is ` +
      "removed from it, and pending calls are given up. To keep the rest, branch instead.";
    if ((await ask({ title: "Rewind this session?", text, action: "Rewind", danger: true })) === null) return;
    const done = await attempt(
      () => post("rewind", { sessionId: this.sessionId, checkpointId }),
      `Back at ${label.toLowerCase()}. Resume continues from there.`,
    );
    if (done) location.hash = `#/sessions/${encodeURIComponent(this.sessionId)}`;
  }

  async #branch(checkpointId) {
    const newSessionId = await ask({
      title: "Branch from here",
      text: "Creates a session with the messages and the state up to this point. Both continue independently.",
      action: "Branch",
      field: {
        label: "Id of the new session",
        value: `${this.sessionId}-branch-${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`,
        required: true,
      },
    });
    if (newSessionId === null) return;
    const done = await attempt(
      () => post("branch", { sessionId: this.sessionId, newSessionId, checkpointId }),
      `${newSessionId} is a branch of ${this.sessionId}.`,
    );
    if (done) location.hash = `#/sessions/${encodeURIComponent(newSessionId)}`;
  }

  async #agents() {
    const list = await this.#below(this.sessionId);
    fill(this.panel, list);
  }

  /** The direct children of a session; those below them are read when the reader opens them. */
  async #below(sessionId) {
    let items;
    try {
      items = (await get(ofSession(sessionId, "children"), {}, this.signal)).items;
    } catch (error) {
      return problem(error);
    }
    if (!items.length)
      return sessionId === this.sessionId
        ? empty("No sub-agents.", "Sessions of agents that work for this one appear here.")
        : h("p.muted", null, "none below");
    return h(
      "ul.tree",
      null,
      items.map((each) => {
        const inside = h("div");
        const remote = each.location === "remote";
        const node = h(
          "details",
          null,
          h(
            "summary",
            null,
            status(this.live.standing(each.status)),
            h("b", null, each.name ? `${each.agentType} · ${each.name}` : each.agentType),
            each.mode === "persistent" ? h("span.chip", null, "companion") : null,
            remote ? h("span.chip", null, "on another service") : null,
            h("a", { href: `#/sessions/${encodeURIComponent(each.sessionId)}` }, h("code", null, each.sessionId)),
            when(each.createdAt),
          ),
          inside,
        );
        node.addEventListener("toggle", async () => node.open && fill(inside, await this.#below(each.sessionId)), {
          once: true,
        });
        return h("li", null, node);
      }),
    );
  }

  #state() {
    const { detail } = this;
    const part = (title, value) => h("section.panel", null, h("h2", null, title), json(value));
    fill(
      this.panel,
      h(
        "section.panel",
        null,
        h("h2", null, "State"),
        Object.keys(detail.state).length
          ? json(detail.state)
          : h("p.muted", null, "This session has no state."),
      ),
      detail.output === undefined ? null : part("Output", detail.output),
      Object.keys(detail.metadata).length ? part("Metadata", detail.metadata) : null,
      h(
        "p.muted",
        null,
        `Session version ${number(detail.version)}, agent version ${number(detail.agentVersion)}.`,
      ),
    );
  }
}

/** Whether the session was stopped: by an interrupt or a pause, or for good. */
function isStopped({ status: stands, failureReason }) {
  return stands === "interrupted" || stands === "paused" || failureReason === "framework_cancelled";
}

function failure(detail) {
  return h(
    "div.problem",
    { role: "alert" },
    h("strong", null, detail.failureReason ?? "failed"),
    detail.error ? h("p", null, detail.error) : null,
  );
}

function stopped({ outcome }) {
  return outcome === "interrupt_set" ? "The run was asked to stop, and will stop soon." : "Nothing was running.";
}

/** The text of a message, with files by name. */
function said(content) {
  if (typeof content === "string") return content;
  return content.map((part) => part.text ?? part.filename ?? part.type).join(" ");
}
