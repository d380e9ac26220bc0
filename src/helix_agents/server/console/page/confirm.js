// Questions before an action, and short messages after it.

import { fill, h } from "./dom.js";

/**
 * Ask before an action.
 *
 * @param {{title: string, text: string, action: string, danger?: boolean,
 *          field?: {label: string, value?: string, required?: boolean}}} question
 * @returns {Promise<string | null>} the text in the field, or "" without one; null if the action was declined
 */
export function ask({ title, text, action, danger = false, field }) {
  const input = field && h("input", { value: field.value ?? "", required: field.required, autocomplete: "off" });
  const dialog = h(
    "dialog",
    { "aria-labelledby": "asked" },
    h(
      "form",
      { method: "dialog" },
      h("h2", { id: "asked" }, title),
      h("p", null, text),
      input ? h("label.field", null, h("span", null, field.label), input) : null,
      h(
        "div.actions",
        null,
        h("button", { value: "no", formnovalidate: true }, "Cancel"),
        h(`button.${danger ? "danger" : "primary"}`, { value: "yes" }, action),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  // Enter in the field confirms. Escape declines, and so does Enter for an action that cannot be undone.
  if (input) input.select();
  else if (!danger) dialog.querySelector("button.primary").focus();
  return new Promise((resolve) => {
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target === input) {
        event.preventDefault();
        if (input.reportValidity()) dialog.close("yes");
      }
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? (input ? input.value.trim() : "") : null);
    });
  });
}

let told;

/** Show a message at the edge of the page, and announce it to screen readers. */
export function say(text, kind = "") {
  told ??= document.body.appendChild(h("div.told", { role: "status", "aria-live": "polite" }));
  const line = h(`p${kind ? `.${kind}` : ""}`, null, text);
  fill(told, line);
  setTimeout(() => line.remove(), kind === "bad" ? 12_000 : 6_000);
}

/** Do something and report the outcome; returns true if it succeeded. */
export async function attempt(work, done) {
  try {
    const answer = await work();
    say(typeof done === "function" ? done(answer) : done);
    return true;
  } catch (error) {
    say([error.message, error.detail].filter(Boolean).join(" "), "bad");
    return false;
  }
}
