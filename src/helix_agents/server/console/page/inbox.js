// Everything that waits for a person, and the decisions on it.

import { Refused, get, ofSession, post } from "./api.js";
import { ask } from "./confirm.js";
import { button, empty, fill, h, json, jsonText, problem } from "./dom.js";
import { count, now, span, when } from "./format.js";

const PAGE = 100;
const LOOK_AGAIN = 4_000;
const UNKNOWN = "unknown_outcome";

/** The key that identifies a waiting call. */
export function keyOf(call) {
  return `${call.rootSessionId} ${call.toolCallId}`;
}

const TITLES = { approval: "Approval", question: "Question", client_tool: "Client tool" };
const WHEN_LATE = { timeout: "times out", deny: "is denied", default: "takes its default answer" };

/** One waiting call, with its possible answers. */
export class Decision {
  /**
   * @param {any} call
   * @param {{mayDecide?: boolean, linked?: boolean, onSettled?: () => void}} [options]
   */
  constructor(call, { mayDecide = true, linked = true, onSettled = () => {} } = {}) {
    this.call = call;
    this.onSettled = onSettled;
    this.settled = false;
    this.actions = h("div.actions");
    this.form = h("div");
    this.due = h("span.due");
    this.el = h(
      "article.card.decision",
      { "data-kind": call.kind, "data-call": call.toolCallId },
      h(
        "header",
        null,
        h("span.chip", { "data-kind": call.kind }, call.reason === UNKNOWN ? "Unknown outcome" : TITLES[call.kind]),
        h("h3", null, call.toolName),
        h("span.muted", null, "asked ", when(call.createdAt)),
        this.due,
      ),
      linked ? this.#place() : null,
      this.#about(),
      this.actions,
      this.form,
    );
    this.tick();
    if (mayDecide) this.#offer();
    else
      fill(
        this.actions,
        h("p.muted", null, "This call belongs to another user. You can see it, but only its owner decides."),
      );
  }

  /** Whether the reader is in the middle of an answer. */
  get isBeingAnswered() {
    return this.form.childElementCount > 0 || this.settled;
  }

  /** Update the time that is left. */
  tick() {
    const { deadline, onDeadline } = this.call;
    if (deadline === undefined) return;
    const left = deadline - now();
    const action = WHEN_LATE[onDeadline?.action ?? "timeout"];
    this.due.textContent = left > 0 ? `${action} in ${span(left)}` : "overdue";
    this.due.dataset.soon = String(left < 3_600_000);
  }

  /** The call no longer waits, and it was not this page that answered it. */
  gone() {
    if (this.settled) return;
    this.#end("Somebody else decided this in the meantime, or it was given up. Your answer was not stored.", "late");
  }

  #place() {
    const { rootSessionId, sessionId } = this.call;
    const link = (id) => h("a", { href: `#/sessions/${encodeURIComponent(id)}` }, h("code", null, id));
    return h(
      "p.place",
      null,
      "in ",
      link(rootSessionId),
      sessionId === rootSessionId ? null : [" by ", link(sessionId)],
    );
  }

  #about() {
    const { kind, input, preview, reason, edited } = this.call;
    const question = kind === "question" && typeof input?.question === "string" ? input.question : null;
    return h(
      "div.about",
      null,
      reason === UNKNOWN
        ? h(
            "p",
            null,
            "This call was started, and its process died. It may or may not have taken effect. Find out, then answer.",
          )
        : reason
          ? h("p", null, reason)
          : null,
      question === null ? null : h("p.question", null, question),
      preview === undefined ? null : [h("h4", null, "What it would do"), json(preview)],
      question === null ? [h("h4", null, edited ? "Input, edited by a person" : "Input"), json(input ?? null)] : null,
    );
  }

  // -- answers

  #offer() {
    const { kind, reason, input } = this.call;
    if (reason === UNKNOWN) {
      fill(
        this.actions,
        button("Say what happened…", () => this.#write(), "primary"),
        button("Run it again…", () => this.#runAgain()),
        button("Leave it unknown", () => this.#decide({ approved: false })),
      );
    } else if (kind === "approval") {
      fill(
        this.actions,
        button("Approve", () => this.#decide({ approved: true }), "primary"),
        button("Edit input…", () => this.#edit()),
        button("Deny…", () => this.#deny(), "danger-quiet"),
      );
    } else {
      const options = kind === "question" && Array.isArray(input?.options) ? input.options : [];
      fill(
        this.actions,
        options.map((each) =>
          button(typeof each === "string" ? each : JSON.stringify(each), () => this.#result({ result: each })),
        ),
        options.length ? null : button("Answer…", () => this.#write(), "primary"),
        button("Cannot be answered…", () => this.#fail(), "danger-quiet"),
      );
    }
  }

  async #runAgain() {
    const text =
      "The call may already have taken effect. " +
      "It then takes effect twice, unless the other side checks its idempotency key.";
    const sure = await ask({ title: "Run this call again?", text, action: "Run it again", danger: true });
    if (sure !== null) await this.#decide({ approved: true });
  }

  #edit() {
    this.#compose({
      label: "Input, as JSON. The call runs with this input instead of the model's.",
      value: jsonText(this.call.input ?? {}),
      action: "Approve with this input",
      check: (text) => {
        const value = JSON.parse(text);
        if (value === null || typeof value !== "object" || Array.isArray(value))
          throw new Error("The input must be an object: {…}.");
        return value;
      },
      send: (editedInput) => this.#decide({ approved: true, editedInput }),
    });
  }

  #deny() {
    this.#compose({
      label: "Reason (optional). The model sees it.",
      action: "Deny",
      danger: true,
      check: (text) => text.trim() || undefined,
      send: (reason) => this.#decide({ approved: false, reason }),
    });
  }

  #write() {
    const asJson = h("input", { type: "checkbox" });
    asJson.checked = this.call.kind === "client_tool";
    this.#compose({
      label: this.call.reason === UNKNOWN ? "What happened" : "Answer",
      action: "Send",
      beside: h("label.check", null, asJson, "is JSON"),
      check: (text) => (asJson.checked ? JSON.parse(text) : text),
      send: (result) => this.#result({ result }),
    });
  }

  #fail() {
    this.#compose({
      label: "Why it cannot be answered. The model sees this.",
      action: "Send",
      danger: true,
      check: (text) => {
        if (!text.trim()) throw new Error("Please give a reason.");
        return text.trim();
      },
      send: (error) => this.#result({ error }),
    });
  }

  /** A text field, checked while the reader types. */
  #compose({ label, value = "", action, danger = false, beside = null, check, send }) {
    const text = h("textarea", {
      rows: Math.min(14, Math.max(2, value.split("\n").length)),
      spellcheck: "false",
      value,
    });
    const wrong = h("p.bad", { role: "alert" });
    const read = () => {
      try {
        const read = check(text.value);
        wrong.textContent = "";
        return { read };
      } catch (error) {
        wrong.textContent = error instanceof SyntaxError ? `This is not valid JSON: ${error.message}` : error.message;
        return null;
      }
    };
    text.addEventListener("input", () => wrong.textContent && read());
    text.addEventListener("change", read);
    this.refused = (why) => (wrong.textContent = why);
    fill(
      this.form,
      h("label.field", null, h("span", null, label), text),
      beside,
      wrong,
      h(
        "div.actions",
        null,
        button(
          action,
          async () => {
            const given = read();
            if (given !== null) await send(given.read);
          },
          danger ? "danger" : "primary",
        ),
        button("Cancel", () => this.#leave(), "link"),
      ),
    );
    this.actions.hidden = true;
    text.focus();
  }

  #leave() {
    fill(this.form);
    this.actions.hidden = false;
  }

  #decide(decision) {
    const { toolCallId, approvalId } = this.call;
    return this.#submit(
      { kind: "approval-response", toolCallId, approvalId, ...decision },
      decision.approved ? "Approved." : "Denied.",
    );
  }

  #result(answer) {
    return this.#submit({ kind: "client-tool-result", toolCallId: this.call.toolCallId, ...answer }, "Answered.");
  }

  async #submit(body, done) {
    const sessionId = this.call.rootSessionId;
    try {
      const { outcome, continuation, stillWaiting } = await post("submit-tool-result", { ...body, sessionId });
      if (outcome === "already_completed") return await this.#tooLate();
      if (outcome === "late_answer_after_timeout") {
        return this.#end(
          "Too late: the call had timed out, and the conversation continued. The model sees the first late answer.",
          "late",
        );
      }
      const trouble = continuation === "resume" ? await goOn(sessionId) : "";
      const others = `${count(stillWaiting, "other call")} of the conversation ${stillWaiting === 1 ? "is" : "are"}`;
      const rest = continuation === "wait" ? ` It continues when ${others} answered.` : "";
      this.#end(done + rest + trouble, "done");
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (error.status === 404) return this.gone();
      this.#refused(error.status === 400 ? error.detail : [error.message, error.detail].join(" "));
    }
    return undefined;
  }

  /** Another answer came first. Show which, if the session still knows. */
  async #tooLate() {
    let theirs = "";
    try {
      const { pending } = await get(ofSession(this.call.sessionId));
      const answer = pending.find((each) => each.toolCallId === this.call.toolCallId)?.answer;
      if (answer?.kind === "approval-response")
        theirs = answer.approved ? " It was approved." : ` It was denied${answer.reason ? `: ${answer.reason}` : "."}`;
    } catch {
      // The session continued, or is gone; its transcript shows the decision.
    }
    this.#end(`Somebody else decided first.${theirs} Your answer was not stored.`, "late");
  }

  #refused(why) {
    if (this.form.childElementCount) this.refused(why);
    else fill(this.form, h("p.bad", { role: "alert" }, why));
  }

  #end(text, kind) {
    this.settled = true;
    this.el.dataset.settled = kind;
    this.#leave();
    fill(this.actions, h("p", { role: "status" }, text));
    this.onSettled();
  }
}

/** Resume a conversation whose calls are answered; returns a note for the reader if that is left to a janitor. */
async function goOn(sessionId) {
  try {
    await post("resume", { sessionId });
  } catch (error) {
    // The answer is stored either way. A conflict means that it is already being resumed, which is fine.
    if (error.status !== 409) return ` It did not continue at once: ${error.message} A janitor will resume it.`;
  }
  return "";
}

/**
 * The inbox: waiting calls of all sessions, oldest first.
 *
 * @param {{caller: any, signal: AbortSignal, onCount: (count: number) => void}} context
 */
export function inbox({ caller, signal, onCount }) {
  const own = h("div.cards");
  const others = h("div.cards");
  const more = h("p.muted");
  const note = h("div");
  const el = h("div.view", null, h("div.view-head", null, h("h1", null, "Inbox"), more), note, own, others);
  /** @type {Map<string, Decision>} */
  const shown = new Map();

  async function look() {
    try {
      const mine = caller.openToAll ? null : caller.userId;
      const list = { order: "oldest", limit: PAGE };
      const waiting =
        caller.openToAll || caller.userId
          ? await get("pending", { ...list, userId: mine }, signal)
          : { items: [], total: 0 };
      const all = caller.operator && !caller.openToAll ? await get("pending", list, signal) : waiting;
      onCount(waiting.total);
      draw(waiting, all);
      fill(note);
    } catch (error) {
      if (!signal.aborted) fill(note, problem(error, look));
    }
  }

  function draw(waiting, all) {
    const known = new Set(waiting.items.map(keyOf));
    sync(own, waiting.items, true);
    const rest = all.items.filter((call) => !known.has(keyOf(call)));
    sync(others, rest, false);
    for (const decision of shown.values()) decision.tick();
    const hidden = waiting.total - waiting.items.length;
    more.textContent = hidden > 0 ? `The oldest ${waiting.items.length} of ${count(waiting.total, "call")}` : "";
    const heading = rest.length ? [h("h2", null, "Other users")] : [];
    others.prepend(...heading);
    if (!own.childElementCount) {
      own.append(
        empty(
          "Nothing is waiting for you.",
          "Approvals, questions and client tools appear here as soon as an agent asks for them.",
        ),
      );
    }
  }

  /** Leave cards that are being answered unchanged, whatever the list contains now. */
  function sync(list, calls, mayDecide) {
    const keys = new Set(calls.map(keyOf));
    for (const [key, decision] of shown) {
      if (keys.has(key) || decision.el.parentElement !== list) continue;
      if (decision.isBeingAnswered) decision.gone();
      else {
        decision.el.remove();
        shown.delete(key);
      }
    }
    for (const other of [...list.children]) if (!other.matches(".decision")) other.remove();
    for (const call of calls) {
      if (shown.has(keyOf(call))) continue;
      const decision = new Decision(call, { mayDecide, onSettled: look });
      shown.set(keyOf(call), decision);
      list.append(decision.el);
    }
  }

  look();
  const timer = setInterval(() => document.visibilityState === "visible" && look(), LOOK_AGAIN);
  signal.addEventListener("abort", () => clearInterval(timer));
  return el;
}
