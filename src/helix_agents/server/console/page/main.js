// The page itself: its reader, the current view, and keyboard shortcuts.

import { get, hasToken, setToken } from "./api.js";
import { empty, fill, h, problem, spelt } from "./dom.js";
import { setClock } from "./format.js";
import { inbox } from "./inbox.js";
import { schedules } from "./schedules.js";
import { session } from "./session.js";
import { sessions } from "./sessions.js";
import { signIn } from "./sign-in.js";
import { usage } from "./usage.js";

const LOOK_AGAIN = 4_000;
const MOST_WAITING = 200;
const PLACES = [
  ["sessions", "Sessions", "s"],
  ["inbox", "Inbox", "i"],
  ["schedules", "Schedules", "c"],
  ["usage", "Usage", "u"],
];

/** The reader's identity according to the server; null until it is known. */
let caller = null;
/** The roots of conversations that wait for the reader. */
let waiting = new Set();
/** Ends everything the current view has in progress. */
let leaving = new AbortController();

const badge = h("span.badge", { hidden: true });
const view = h("main", { id: "main", tabindex: "-1" });

// -- who reads

async function begin() {
  try {
    welcome(await get("caller"));
  } catch (error) {
    if (error.status !== 401) fill(document.body, h("main.alone", null, problem(error, begin)));
  }
}

function welcome(who) {
  caller = who;
  setClock(who.timestamp);
  fill(document.body, h("a.skip", { href: "#main", onclick: skip }, "Skip to the content"), sidebar(), view);
  countWaiting();
  show();
}

function askWhoReads() {
  leaving.abort();
  if (document.querySelector(".sign-in")) return;
  caller = null;
  fill(document.body, h("main.alone", null, signIn(welcome)));
}

function signOut() {
  setToken(null);
  askWhoReads();
}

// -- around the view

function sidebar() {
  const links = PLACES.map(([name, label, key]) =>
    h("a", { href: `#/${name}`, "data-place": name, title: `g ${key}` }, label, name === "inbox" ? badge : null),
  );
  const who = caller.openToAll
    ? "open to everybody"
    : `${caller.userId ?? "no user"}${caller.operator ? " · operator" : ""}`;
  return h(
    "header.sidebar",
    null,
    h(
      "a.brand",
      { href: "#/sessions" },
      h("img", { src: "console/icon.svg", alt: "", width: "26", height: "26" }),
      h("span", null, "Helix ", h("span.muted", null, "Console")),
    ),
    h("nav", { "aria-label": "Console" }, links),
    h(
      "div.foot",
      null,
      h("span.muted", { title: "You are signed in as" }, who),
      h("button.link", { type: "button", onclick: nextTheme, title: "Light, dark, or as in the system" }, themeName()),
      h("button.link", { type: "button", onclick: showKeys, title: "?" }, "Keys"),
      hasToken() ? h("button.link", { type: "button", onclick: signOut }, "Sign out") : null,
    ),
  );
}

function setWaitingCount(count) {
  badge.textContent = count > 99 ? "99+" : String(count);
  badge.hidden = count === 0;
  nameTab();
}

/** The tab's title: how many calls wait, and the current view. */
function nameTab() {
  const { name, id } = place();
  const where = id ?? PLACES.find(([each]) => each === name)?.[1] ?? "";
  document.title = spelt(`${badge.hidden ? "" : `(${badge.textContent}) `}${where} · Helix Console`);
}

async function countWaiting() {
  if (caller === null || !(caller.openToAll || caller.userId)) return;
  try {
    const found = await get("pending", { limit: MOST_WAITING, userId: caller.openToAll ? null : caller.userId });
    waiting = new Set(found.items.map((call) => call.rootSessionId));
    setWaitingCount(found.total);
    dispatchEvent(new Event("helix:waiting"));
  } catch {
    // The current view reports the error.
  }
}

// -- places

/** The current place: `#/sessions/ID/runs?page=2` is the place sessions, with an id, a tab and a query. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, id, tab] = path.split("/").map(decoded);
  return { name: name || "sessions", id, tab: tab ?? "", query: new URLSearchParams(query) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function go(name, query) {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  location.hash = asked.size ? `#/${name}?${asked}` : `#/${name}`;
}

function show() {
  if (caller === null) return;
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const { name, id, tab, query } = place();
  for (const link of document.querySelectorAll("[data-place]")) {
    if (link.dataset.place === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const context = { caller, query, signal };
  if (name === "sessions" && id) fill(view, session({ ...context, sessionId: id, tab, onSettled: countWaiting }));
  else if (name === "sessions")
    fill(view, sessions({ ...context, go: (asked) => go("sessions", asked), waiting: () => waiting }));
  else if (name === "inbox") fill(view, inbox({ ...context, onCount: setWaitingCount }));
  else if (name === "schedules") fill(view, schedules(context));
  else if (name === "usage") fill(view, usage(context));
  else fill(view, empty("There is no such page in the console.", "There are Sessions, Inbox, Schedules and Usage."));
  nameTab();
  scrollTo(0, 0);
}

function skip(event) {
  event.preventDefault();
  view.focus();
}

// -- light and dark

const THEMES = { "": "Theme: system", light: "Theme: light", dark: "Theme: dark" };

function themeName() {
  return THEMES[localStorage.getItem("helix.theme") ?? ""];
}

function nextTheme(event) {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(localStorage.getItem("helix.theme") ?? "") + 1) % names.length]);
  event.target.textContent = themeName();
}

function setTheme(name) {
  localStorage.setItem("helix.theme", name);
  document.documentElement.dataset.theme = name;
}

// -- keys

const KEYS = [
  ["g then s, i, c, u", "Sessions, Inbox, Schedules, Usage"],
  ["j, k", "next or previous item in a list"],
  ["Enter", "open"],
  ["/", "open a session by its id"],
  ["Esc", "leave a field, close a dialog"],
  ["?", "this list"],
];
let pressed = "";

function showKeys() {
  const lines = KEYS.map(([key, what]) => h("div", null, h("dt", null, h("kbd", null, key)), h("dd", null, what)));
  const dialog = h(
    "dialog",
    { "aria-label": "Keys" },
    h(
      "form",
      { method: "dialog" },
      h("h2", null, "Keys"),
      h("dl.keys", null, lines),
      h("div.actions", null, h("button", null, "Close")),
    ),
  );
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
}

function onKey(event) {
  if (caller === null || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog")) return;
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const chord = pressed + event.key;
  pressed = event.key === "g" ? "g" : "";
  const found = PLACES.find(([, , key]) => chord === `g${key}`);
  if (found) location.hash = `#/${found[0]}`;
  else if (event.key === "?") showKeys();
  else if (event.key === "/") {
    const field = document.querySelector("[data-slash]");
    if (field) field.focus();
    else location.hash = "#/sessions";
  } else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
  else return;
  event.preventDefault();
}

function move(by) {
  const rows = [...view.querySelectorAll("a.row, .row.closed, summary, .decision button")].filter(
    (row) => row.offsetParent !== null,
  );
  const at = rows.indexOf(document.activeElement);
  rows[at === -1 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + by, 0), rows.length - 1)]?.focus();
}

document.documentElement.dataset.theme = localStorage.getItem("helix.theme") ?? "";
addEventListener("hashchange", show);
addEventListener("keydown", onKey);
addEventListener("helix:unauthenticated", askWhoReads);
setInterval(() => document.visibilityState === "visible" && countWaiting(), LOOK_AGAIN);
begin();
