// Dialogs and short messages.

import { el, replace } from "./dom.js";

let serial = 0;

/**
 * Ask for confirmation of something that cannot be undone.
 * @param {string} title the question
 * @param {Array<string|Node>} says what will happen, one paragraph each
 * @param {string} verb the label of the button that does it
 * @returns {Promise<boolean>}
 */
export function confirm(title, says, verb) {
  return open(title, says.map((one) => (one instanceof Node ? one : el("p", {}, one))), (close) => [
    el("button", { type: "button", class: "danger", onclick: () => close(true) }, verb),
    el("button", { type: "button", autofocus: true, onclick: () => close(false) }, "Cancel"),
  ]).then(Boolean);
}

/**
 * Show a dialog until it is closed, or the page goes on to another view, of which it would say nothing.
 * @param {(close: (value) => void) => Node[]} buttons
 * @returns {Promise} the value with which it was closed; undefined after Escape
 */
export function open(title, content, buttons) {
  return new Promise((answer) => {
    const name = `dialog-${(serial += 1)}`;
    let value;
    const close = (chosen) => {
      value = chosen;
      node.close();
    };
    const node = el("dialog", { "aria-labelledby": name }, el("h2", { id: name }, title), ...content,
      el("div", { class: "row" }, ...buttons(close)));
    node.addEventListener("close", () => {
      node.remove();
      answer(value);
    });
    window.addEventListener("hashchange", () => close(undefined), { once: true });
    document.body.append(node);
    node.showModal();
  });
}

const notes = el("div", { class: "notes", role: "status", "aria-live": "polite" });
const alarms = el("div", { class: "notes", role: "alert" });

/** The places where messages appear; once in the page. */
export function messages() {
  replace(notes);
  replace(alarms);
  return el("div", { class: "messages" }, notes, alarms);
}

/** Say what has been done. The message goes away by itself. */
export function tell(text) {
  show(notes, text, "note", 8);
}

/** Say what has gone wrong. The message stays until it is closed; returns what closes it. */
export function warn(text) {
  return show(alarms, text, "alarm", 0);
}

function show(place, text, kind, seconds) {
  const gone = () => node.remove();
  const node = el("div", { class: `message ${kind}` }, el("span", {}, text),
    el("button", { type: "button", class: "plain", "aria-label": "Close this message", onclick: gone }, "×"));
  place.append(node);
  while (place.childElementCount > 4) place.firstElementChild.remove();
  if (seconds) setTimeout(gone, seconds * 1000);
  return gone;
}
