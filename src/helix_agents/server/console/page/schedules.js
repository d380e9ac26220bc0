// What agents are told at set times: when next, and what happened the last time.

import { get, post } from "./api.js";
import { attempt } from "./confirm.js";
import { button, empty, fill, h, json, problem } from "./dom.js";
import { count, number, status, when } from "./format.js";

const PAGE = 50;
const LOOK_AGAIN = 4_000;

/** @param {{caller: any, query: URLSearchParams, signal: AbortSignal}} context */
export function schedules({ caller, query, signal }) {
  const page = Math.max(1, Number(query.get("page")) || 1);
  const list = h("div.rows", { "aria-busy": "true" });
  const pager = h("nav.pager", { "aria-label": "Pages" });
  const total = h("p.muted");
  const note = h("div");
  let drawn = "";

  async function look() {
    try {
      const found = await get("schedules", { offset: (page - 1) * PAGE, limit: PAGE }, signal);
      fill(note);
      draw(found);
    } catch (error) {
      if (!signal.aborted) fill(note, problem(error, look));
    }
    list.removeAttribute("aria-busy");
  }

  function draw(found) {
    const news = JSON.stringify(found.items);
    if (news === drawn) return;
    drawn = news;
    total.textContent = count(found.total, "schedule");
    const open = new Set([...list.querySelectorAll("details[open]")].map((each) => each.dataset.schedule));
    const focused = document.activeElement?.closest("[data-schedule]")?.dataset.schedule;
    fill(list, found.items.length ? found.items.map((each) => row(each, open.has(each.scheduleId))) : nothing());
    if (focused) list.querySelector(`[data-schedule="${CSS.escape(focused)}"] > summary`)?.focus();
    const pages = Math.max(1, Math.ceil(found.total / PAGE));
    const link = (label, to) =>
      to === null ? h("span.muted", null, label) : h("a", { href: `#/schedules?page=${to}` }, label);
    fill(
      pager,
      pages > 1
        ? [
            link("Previous", page > 1 ? page - 1 : null),
            h("span.muted", null, `Page ${number(page)} of ${number(pages)}`),
            link("Next", page < pages ? page + 1 : null),
          ]
        : null,
    );
  }

  function row(schedule, isOpen) {
    const facts = [
      status(standing(schedule)),
      h("span.row-main", null, h("b", null, schedule.scheduleId), h("code", null, schedule.agentType)),
      h(
        "span.row-more",
        null,
        schedule.userId && schedule.userId !== caller.userId ? h("span.muted", null, schedule.userId) : null,
        h("span.muted", null, timing(schedule)),
      ),
      h("span.row-count", null, outcome(schedule)),
      schedule.nextAt === undefined ? h("span.row-count", null, "no next time") : when(schedule.nextAt),
    ];
    if (!(caller.openToAll || (schedule.userId !== undefined && schedule.userId === caller.userId))) {
      const why = "Operators can see that this schedule exists, but only its owner can read and pause it.";
      return h("div.row.closed", { title: why, tabindex: "0" }, facts);
    }
    const body = h("div.row-body");
    const el = h(
      "details.row-details",
      { "data-schedule": schedule.scheduleId, open: isOpen },
      h("summary.row", null, facts),
      body,
    );
    if (isOpen) read(schedule, body);
    el.addEventListener("toggle", () => el.open && !body.hasChildNodes() && read(schedule, body));
    return el;
  }

  async function read({ scheduleId }, place) {
    try {
      fill(place, details(await get(`schedules/${encodeURIComponent(scheduleId)}`, {}, signal)));
    } catch (error) {
      if (!signal.aborted) fill(place, problem(error, () => read({ scheduleId }, place)));
    }
  }

  function details(schedule) {
    const { last } = schedule;
    const how = schedule.paused ? "resume" : "pause";
    const change = () =>
      attempt(
        () => post(`schedules/${encodeURIComponent(schedule.scheduleId)}/${how}`, {}),
        schedule.paused ? "The schedule continues." : "The schedule is paused.",
      ).then(look);
    return [
      h(
        "dl.facts",
        null,
        fact("Next", schedule.nextAt === undefined ? "none" : when(schedule.nextAt)),
        fact("Turns started", number(schedule.times)),
        fact("Session", schedule.sessionId ? sessionLink(schedule.sessionId) : "a new one each time"),
        fact("If it is busy", schedule.ifBusy === "skip" ? "skip that time" : "wait"),
        last ? fact("Last due", when(last.dueAt)) : null,
        last?.runId ? fact("Last turn in", sessionLink(last.sessionId)) : null,
      ),
      last?.error ? h("p.bad", null, last.error) : null,
      h("h4", null, "Says"),
      ...schedule.messages.map((message) => json(message.content)),
      isOver(schedule) ? null : h("div.actions", null, button(schedule.paused ? "Resume" : "Pause", change)),
    ];
  }

  look();
  const timer = setInterval(() => document.visibilityState === "visible" && look(), LOOK_AGAIN);
  signal.addEventListener("abort", () => clearInterval(timer));
  return h("div.view", null, h("div.view-head", null, h("h1", null, "Schedules"), total), note, list, pager);
}

/** A schedule without a next time is over, unless it is paused. */
function isOver(schedule) {
  return !schedule.paused && schedule.nextAt === undefined;
}

/** A schedule whose last turn was refused needs attention. */
function standing(schedule) {
  if (schedule.paused) return "paused";
  if (schedule.last?.error) return "failed";
  return isOver(schedule) ? "completed" : "active";
}

function timing(schedule) {
  if (schedule.cron) return `${schedule.cron} ${schedule.timezone}`;
  return schedule.everyMs === undefined ? "once" : `every ${interval(schedule.everyMs)}`;
}

const UNITS = [
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["min", 60_000],
];

/** An interval exactly: in one unit if it is a multiple of it. */
function interval(milliseconds) {
  const [unit, length] = UNITS.find(([, each]) => milliseconds % each === 0) ?? ["s", 1_000];
  return `${number(milliseconds / length)} ${unit}`;
}

function outcome({ last }) {
  if (!last) return "not due yet";
  if (last.error) return "last turn refused";
  return last.runId ? "last turn started" : "last turn skipped, session busy";
}

function fact(name, value) {
  return h("div", null, h("dt", null, name), h("dd", null, value));
}

function sessionLink(sessionId) {
  return h("a", { href: `#/sessions/${encodeURIComponent(sessionId)}` }, sessionId);
}

function nothing() {
  return empty(
    "No schedules yet.",
    "Set one with helix.schedules.set(…), helix schedules set, or PUT /schedules/{scheduleId}.",
  );
}
