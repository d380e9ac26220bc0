// The list of conversations: newest first, filtered, in pages.

import { get } from "./api.js";
import { empty, fill, h, problem } from "./dom.js";
import { count, number, status, when } from "./format.js";

const PAGE = 25;
const LOOK_AGAIN = 4_000;
const STATUSES = ["active", "completed", "failed", "interrupted", "paused"];

/**
 * @param {{caller: any, query: URLSearchParams, go: (query: Object<string, any>) => void, signal: AbortSignal,
 *          waiting: () => Set<string>}} context `waiting` returns the roots of conversations that wait for an answer
 */
export function sessions({ caller, query, go, signal, waiting }) {
  const asked = Object.fromEntries(["status", "agent", "tag", "user"].map((name) => [name, query.get(name) ?? ""]));
  const page = Math.max(1, Number(query.get("page")) || 1);
  const list = h("div.rows", { "aria-busy": "true" });
  const pager = h("nav.pager", { "aria-label": "Pages" });
  const total = h("p.muted");
  const note = h("div");
  let last = null;
  let drawn = "";

  async function look() {
    try {
      const found = await get(
        "sessions",
        {
          offset: (page - 1) * PAGE,
          limit: PAGE,
          status: asked.status,
          agentType: asked.agent,
          tag: asked.tag,
          userId: asked.user,
        },
        signal,
      );
      fill(note);
      last = found;
      draw(found);
    } catch (error) {
      if (!signal.aborted) fill(note, problem(error, look));
    }
    list.removeAttribute("aria-busy");
  }

  function draw(found) {
    const rows = waiting();
    const news = JSON.stringify([found.items, [...rows]]);
    if (news === drawn) return;
    drawn = news;
    const focused = document.activeElement?.getAttribute("href");
    total.textContent = count(found.total, "session");
    fill(list, found.items.length ? found.items.map((each) => row(each, caller, rows)) : nothing(asked));
    if (focused) list.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
    const pages = Math.max(1, Math.ceil(found.total / PAGE));
    fill(
      pager,
      pages > 1
        ? [
            pageLink("Newer", page > 1 ? page - 1 : null, asked),
            h("span.muted", null, `Page ${number(page)} of ${number(pages)}`),
            pageLink("Older", page < pages ? page + 1 : null, asked),
          ]
        : null,
    );
  }

  look();
  addEventListener("helix:waiting", () => last && draw(last), { signal });
  const timer = setInterval(() => document.visibilityState === "visible" && look(), LOOK_AGAIN);
  signal.addEventListener("abort", () => clearInterval(timer));
  return h(
    "div.view",
    null,
    h("div.view-head", null, h("h1", null, "Sessions"), total),
    filters(asked, caller, (change) => go({ ...asked, ...change, page: "" })),
    note,
    list,
    pager,
  );
}

function filters(asked, caller, change) {
  const known = h(
    "datalist",
    { id: "agents" },
    caller.agents.map((name) => h("option", { value: name })),
  );
  const chosen = h(
    "select",
    { "aria-label": "Status", onchange: (event) => change({ status: event.target.value }) },
    h("option", { value: "" }, "Any status"),
    STATUSES.map((each) => h("option", { value: each, selected: each === asked.status }, each)),
  );
  const written = (name, label, more = {}) =>
    h("input", {
      type: "search",
      placeholder: label,
      "aria-label": label,
      value: asked[name],
      onchange: (event) => change({ [name]: event.target.value.trim() }),
      ...more,
    });
  const open = h("input.mono", {
    type: "search",
    placeholder: "Open by id…",
    "aria-label": "Open by id",
    "data-slash": true,
  });
  const form = h("form.open", null, open);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (open.value.trim()) location.hash = `#/sessions/${encodeURIComponent(open.value.trim())}`;
  });
  return h(
    "div.filters",
    { role: "search" },
    chosen,
    written("agent", "Agent", { list: "agents" }),
    written("tag", "Tag"),
    caller.operator ? written("user", "User") : null,
    known,
    form,
  );
}

/** The agent that a session belongs to, and the one that has it if that is another. */
function agentsOf(session) {
  return session.heldBy ? `${session.agentType} → ${session.heldBy}` : session.agentType;
}

function row(session, caller, waiting) {
  const mine = caller.openToAll || (session.userId !== undefined && session.userId === caller.userId);
  const standing = session.status === "active" && waiting.has(session.sessionId) ? "waiting" : session.status;
  const facts = [
    status(standing),
    h("span.row-main", null, h("b", null, agentsOf(session)), h("code", null, session.sessionId)),
    h(
      "span.row-more",
      null,
      session.tags.map((tag) => h("span.chip", null, tag)),
      session.userId && session.userId !== caller.userId ? h("span.muted", null, session.userId) : null,
    ),
    h("span.row-count", null, `${count(session.stepCount, "step")} · ${count(session.messageCount, "message")}`),
    when(session.updatedAt),
  ];
  if (mine) return h("a.row", { href: `#/sessions/${encodeURIComponent(session.sessionId)}` }, facts);
  const why = "This session belongs to another user. Operators can see that it exists, but only its owner can read it.";
  return h("div.row.closed", { title: why, tabindex: "0" }, facts);
}

function nothing(asked) {
  if (Object.values(asked).some(Boolean)) {
    return h(
      "div",
      null,
      empty("No session matches.", "Try another status, agent or tag."),
      h("p.center", null, h("a", { href: "#/sessions" }, "Show all sessions")),
    );
  }
  return empty(
    "No sessions yet.",
    "They appear as soon as somebody talks to an agent: through POST /chat or /start, or with helix run on this store.",
  );
}

function pageLink(label, page, asked) {
  if (page === null) return h("span.muted", null, label);
  const query = new URLSearchParams(Object.entries({ ...asked, page }).filter(([, value]) => value));
  return h("a", { href: `#/sessions?${query}` }, label);
}
