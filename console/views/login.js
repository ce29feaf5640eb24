// The login form for salt-api.

import { el, say } from "../dom.js";

const BACKENDS = ["pam", "auto", "django", "file", "keystone", "ldap", "mysql", "pki", "rest", "sharedsecret", "yubico"];
const REMEMBERED = "saltext-jobs-console-eauth";

/** Return the form, with a user name. `done(session)` is called when salt-api has accepted the user. */
export function loginForm(api, reason, name, done) {
  const user = el("input", { id: "user", name: "username", autocomplete: "username", autocapitalize: "none", spellcheck: "false", required: true });
  const password = el("input", { id: "password", name: "password", type: "password", autocomplete: "current-password", required: true });
  user.value = name;
  const backend = el("input", { id: "eauth", name: "eauth", list: "backends", autocapitalize: "none", spellcheck: "false", required: true });
  backend.value = remembered();
  const trouble = el("p", { role: "alert", class: "trouble" }, reason);
  const button = el("button", { type: "submit", class: "primary" }, "Log in");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    say(trouble, "");
    try {
      const session = await api.login(user.value, password.value, backend.value.trim());
      remember(backend.value.trim());
      done(session);
    } catch (error) {
      password.value = "";
      say(trouble, `${error.message}.`);
      password.focus();
    } finally {
      button.disabled = false;
    }
  };
  return el("main", { class: "login" }, el("h1", {}, "Salt jobs"),
    el("form", { onsubmit: submit },
      el("label", { for: "user" }, "User"), user,
      el("label", { for: "password" }, "Password"), password,
      el("label", { for: "eauth" }, "Authentication (eauth)"), backend,
      el("datalist", { id: "backends" }, BACKENDS.map((name) => el("option", { value: name }))),
      button, trouble));
}

// If the browser forbids the page to store anything, nothing is remembered.
function remembered() {
  try {
    return localStorage.getItem(REMEMBERED) || "pam";
  } catch {
    return "pam";
  }
}

function remember(eauth) {
  try {
    localStorage.setItem(REMEMBERED, eauth);
  } catch {
    // nothing is remembered
  }
}
