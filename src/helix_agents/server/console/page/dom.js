// Elements, created in one place. Text of models and users becomes text nodes: nothing here accepts HTML.

/**
 * Invisible characters, and those that reverse the text around them: `gnp.exe` could be shown as `exe.png`.
 * Characters that join letters and emoji are left alone.
 */
const UNSEEN = /(?![\t\n\r\u200c\u200d\ufe0e\ufe0f])[\p{Cc}\p{Cf}\p{Default_Ignorable_Code_Point}]/gu;

/** A text with such characters spelt out, so that a person who decides on a call reads what it really says. */
export function spelt(text) {
  return text.replace(UNSEEN, (each) => `⟨U+${each.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** A value as indented JSON with such characters escaped, so that it stays the same value when it is edited. */
export function jsonText(value) {
  const escaped = (each) => each.split("").map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return JSON.stringify(value, null, 2).replace(UNSEEN, (each) => escaped(each).join(""));
}

/** Children in their final form: texts spelt out, empty values left out. */
function nodes(children) {
  const shown = children.flat().filter((child) => child !== null && child !== undefined && child !== false);
  return shown.map((child) => (child instanceof Node ? child : spelt(String(child))));
}

/**
 * An element: `h("a.row", { href: "#/inbox", onclick: go }, "Inbox", count)`.
 *
 * Children are elements, texts, or nothing (null, undefined, false). Links only lead within the page.
 *
 * @param {string} what a tag, with classes after dots
 * @param {Object<string, any> | null} [attributes] an `on…` is a listener; true and false switch an attribute
 * @param {...any} children
 * @returns {HTMLElement}
 */
export function h(what, attributes, ...children) {
  const [tag, ...classes] = what.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "href" && !String(value).startsWith("#")) throw new Error("a link that leads out of the console");
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...nodes(children));
  return element;
}

/** Replace the contents of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

/** A button that is disabled while its action is in progress, so that nothing is requested twice. */
export function button(label, onclick, kind = "") {
  const element = h(`button${kind ? `.${kind}` : ""}`, { type: "button" }, label);
  element.addEventListener("click", async () => {
    element.disabled = true;
    try {
      await onclick();
    } finally {
      element.disabled = false;
    }
  });
  return element;
}

/** A placeholder for an empty view, with what to do about it. */
export function empty(title, ...advice) {
  return h("div.empty", null, h("strong", null, title), ...advice.map((line) => h("p", null, line)));
}

/** An error message in place of what would have been shown. */
export function problem(error, again) {
  return h(
    "div.problem",
    { role: "alert" },
    h("strong", null, error.message || "Something went wrong."),
    error.detail && error.detail !== error.message ? h("p", null, error.detail) : null,
    again ? button("Try again", again) : null,
  );
}

const FOLDED = 4_000;

/** A value as indented JSON; a long one is collapsed. */
export function json(value) {
  const text = value === undefined ? "" : typeof value === "string" ? value : jsonText(value);
  const block = h("pre.json", { tabindex: "0" });
  const show = (shown) => fill(block, typeof value === "string" ? shown : coloured(shown));
  if (text.length <= FOLDED) {
    show(text);
    return block;
  }
  show(`${text.slice(0, FOLDED)}…`);
  const more = h("button.link", { type: "button" }, `Show all ${text.length.toLocaleString()} characters`);
  more.addEventListener("click", () => {
    show(text);
    more.remove();
  });
  return h("div", null, block, more);
}

const TOKEN = /("(?:\\.|[^"\\])*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** The tokens of a JSON text, each as an element marked with its kind. */
function coloured(text) {
  const pieces = [];
  let at = 0;
  for (const found of text.matchAll(TOKEN)) {
    pieces.push(text.slice(at, found.index));
    const kind = found[2] !== undefined ? "key" : found[1] !== undefined ? "string" : "literal";
    pieces.push(h(`span.${kind}`, null, found[1] ?? found[0]), found[2] ?? "");
    at = found.index + found[0].length;
  }
  pieces.push(text.slice(at));
  return pieces;
}
