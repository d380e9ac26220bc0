// Times, durations and counts in readable form.

import { h } from "./dom.js";

/** How far the server's clock is ahead of this machine's; all stored times are the server's. */
let ahead = 0;

/** Learn the server's time from a response. */
export function setClock(timestamp) {
  ahead = timestamp - Date.now();
}

export function now() {
  return Date.now() + ahead;
}

const UNITS = [
  ["day", 86_400_000],
  ["hour", 3_600_000],
  ["minute", 60_000],
  ["second", 1_000],
];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const absolute = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "medium" });

function distance(at) {
  const span = at - now();
  for (const [unit, length] of UNITS) {
    if (Math.abs(span) >= length) return relative.format(Math.trunc(span / length), unit);
  }
  return "just now";
}

/** A time as its distance from now, with the full date as a tooltip. */
export function when(at) {
  if (at === undefined || at === null) return h("span.muted", null, "never");
  const date = new Date(at);
  return h("time", { datetime: date.toISOString(), title: absolute.format(date) }, distance(at));
}

// Keep all times on the page up to date.
setInterval(() => {
  for (const shown of document.querySelectorAll("time")) shown.textContent = distance(Date.parse(shown.dateTime));
}, 10_000);

/** A duration in its two largest units. */
export function span(milliseconds) {
  if (milliseconds < 1_000) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1_000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3_600)} h ${Math.floor((seconds % 3_600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3_600)} h`;
}

export function number(value) {
  return value.toLocaleString("en");
}

/** A large number in few characters. */
export function brief(value) {
  return Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

export function count(amount, noun) {
  return `${number(amount)} ${noun}${amount === 1 ? "" : "s"}`;
}

const WORDS = {
  running: "running",
  active: "active",
  waiting: "waiting",
  paused: "paused",
  completed: "completed",
  failed: "failed",
  interrupted: "interrupted",
  suspended: "waiting",
  suspended_client_tool: "waiting",
  suspended_awaiting_children: "waiting",
  suspended_step_partial: "waiting",
  terminated: "terminated",
};

/** A status at a glance: a coloured dot, and a word for readers who do not see colours. */
export function status(name) {
  const word = WORDS[name] ?? name;
  return h("span.status", { "data-status": word }, word);
}
