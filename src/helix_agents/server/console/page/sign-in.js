// The form that asks for a token, if the server authenticates its callers.

import { get, hasToken, setToken } from "./api.js";
import { h } from "./dom.js";

/**
 * The form; `onDone` receives the reader's identity according to the server.
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
  const why = h("p.muted", { id: "why" }, hasToken() ? "The server no longer accepts this token." : "");
  const form = h(
    "form.sign-in",
    null,
    h("img", { src: "console/icon.svg", alt: "", width: "44", height: "44" }),
    h("h1", null, "Helix Console"),
    h("p.muted", null, "This server needs a token. You can see and do what the token allows."),
    h("label.field", null, h("span", null, "Token"), token),
    why,
    h("button.primary", { type: "submit" }, "Sign in"),
    h("p.small.muted", null, "The token is kept for this tab only, and forgotten when you close it."),
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
        error.status === 401 ? "The server does not accept this token." : `${error.message} ${error.detail ?? ""}`;
      token.select();
    }
  });
  return form;
}
