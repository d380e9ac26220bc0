// The question for a token, where the server wants to know who calls.

import { get, hasToken, setToken } from "./api.js";
import { h } from "./dom.js";

/**
 * The form; `onDone` is told who the server takes the reader for.
 *
 * @param {(caller: object) => void} onDone
 */
export function signIn(onDone) {
  const token = h("input", {
    type: "password",
    name: "token",
    autocomplete: "off",
    required: true,
    autofocus: true,
    "aria-describedby": "why",
  });
  const why = h("p.muted", { id: "why" }, hasToken() ? "The server does not know this token any more." : "");
  const form = h(
    "form.sign-in",
    null,
    h("img", { src: "console/icon.svg", alt: "", width: "44", height: "44" }),
    h("h1", null, "Helix Console"),
    h("p.muted", null, "This server asks who is calling. Give it a token: you see and do here what the token allows."),
    h("label.field", null, h("span", null, "Token"), token),
    why,
    h("button.primary", { type: "submit" }, "Sign in"),
    h("p.small.muted", null, "It is kept for this tab only, and forgotten when you close it."),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    setToken(token.value.trim());
    why.textContent = "";
    try {
      onDone(await get("caller"));
    } catch (error) {
      setToken(null);
      why.className = "bad";
      why.textContent =
        error.status === 401 ? "The server does not know this token." : `${error.message} ${error.detail ?? ""}`;
      token.select();
    }
  });
  return form;
}
