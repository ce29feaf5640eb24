// Parts that several views use.

import { warn } from "../dialog.js";
import { el, keyed, replace, say, set } from "../dom.js";
import { count, name } from "../format.js";
import { STATES, done, mendedBy } from "../model/batches.js";

/** Says what could not be read. */
export class Trouble {
  constructor() {
    this.node = el("p", { class: "trouble", role: "alert" });
    this.node.hidden = true;
  }

  show(error) {
    this.node.hidden = !error;
    say(this.node, error ? `${error.message}.`.replace(/\.\.$/, ".") : "");
  }
}

/** A state in words, with a colour of its own. */
export function badge(state = "") {
  const node = el("span", { class: "badge" });
  const show = (now) => {
    set(node, "data-state", now);
    say(node, name(now));
  };
  show(state);
  return { node, set: show };
}

/**
 * A button that calls a runner. The API alone decides who may call it; the button shows a user that they may not.
 * @param {App} app
 * @param {string} text
 * @param {string} fun the function that it calls
 * @param {() => Promise} run what it does
 */
export function action(app, text, fun, run, kind = "") {
  const note = el("span", { class: "note" });
  const node = el("button", { type: "button", class: kind }, text, note);
  node.addEventListener("click", async () => {
    if (node.classList.contains("busy")) return; // a double click, or a key that is held down, counts once
    if (app.api.denied.has(fun)) {
      warn(`You are not permitted to call ${fun}`);
      return;
    }
    node.classList.add("busy");
    try {
      await run();
    } finally {
      node.classList.remove("busy");
      app.draw();
    }
  });
  return {
    node,
    /** Show whether it can be used now. */
    set(usable = true) {
      const denied = app.mayNot(fun);
      node.hidden = !usable;
      node.classList.toggle("denied", denied);
      set(node, "title", denied ? `Not permitted: ${fun}` : null);
      say(note, denied ? " (not permitted)" : "");
    },
  };
}

/** A bar of a batch's minions in the colours of their states. */
export function bar() {
  const parts = STATES.map((state) => el("span", { "data-state": state }));
  const node = el("div", { class: "bar", role: "progressbar", "aria-valuemin": 0, "aria-label": "Minions that have ended" }, parts);
  return {
    node,
    set(batch) {
      const total = Math.max(1, batch.total || 0);
      parts.forEach((part, index) => {
        part.style.width = `${(100 * (batch[STATES[index]] || 0)) / total}%`;
      });
      node.classList.toggle("mended", Boolean(mendedBy(batch)));
      set(node, "aria-valuemax", total);
      set(node, "aria-valuenow", Math.min(total, Math.max(0, done(batch))));
      set(node, "aria-valuetext", counts(batch));
    },
  };
}

/** `12 of 40, 3 failed, 1 lost` */
export function counts(batch) {
  const bad = STATES.slice(3).filter((state) => batch[state] > 0).map((state) => `${count(batch[state])} ${name(state)}`);
  return [`${count(done(batch))} of ${count(batch.total)}`, ...bad].join(", ");
}

/**
 * A table that shows some rows, and more on demand.
 * @param {Array<string>} heads
 * @param {(item) => string} keyOf
 * @param {(item) => {cells: Array<{node: Node}>, set: (item) => void}} make
 */
export class Table {
  constructor(caption, heads, keyOf, make, page = 100) {
    Object.assign(this, { keyOf, make, heads, page, most: page });
    this.body = el("tbody");
    this.empty = el("p", { class: "quiet" });
    this.more = el("button", { type: "button", onclick: () => { this.most += this.page * 2; this.again?.(); } });
    this.more.hidden = true;
    this.table = el("table", {}, el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head || el("span", { class: "unseen" }, "Actions"))))), this.body);
    this.node = el("div", { class: "table" }, this.table, this.empty, this.more);
  }

  /** @param {string} none the text if there are no rows; `beyond`: how many more there are that are not in `items`. */
  draw(items, none, beyond = 0) {
    this.again = () => this.draw(items, none, beyond);
    keyed(this.body, items.slice(0, this.most), this.keyOf, (item) => {
      const row = this.make(item);
      return { node: el("tr", {}, row.cells.map((cell, index) => el("td", { "data-of": this.heads[index] || null }, cell))), set: row.set };
    });
    const left = Math.max(0, items.length - this.most);
    this.table.hidden = !items.length;
    say(this.empty, items.length ? (left + beyond ? `${count(left + beyond)} more are not shown.` : "") : none);
    this.more.hidden = !left;
    say(this.more, `Show ${count(Math.min(left, this.page * 2))} more`);
  }
}

/** A cell of text that can change. */
export function cell(tag = "span", props = {}) {
  const node = el(tag, props);
  return { node, set: (text) => say(node, text) };
}

/** Fields with their labels. */
export function field(id, text, input, hint = "") {
  set(input, "id", id);
  if (hint) set(input, "aria-describedby", `${id}-hint`);
  return el("div", { class: "field" }, el("label", { for: id }, text), input, hint && el("p", { class: "hint", id: `${id}-hint` }, hint));
}

export function choice(options, chosen = options[0][0]) {
  return el("select", {}, options.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
}

/** A list of facts: `[[what, how]]`. One that says the same as before keeps its node, so that selected text stays selected. */
export function facts(node, rows) {
  const known = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  keyed(node, known, ([what]) => what, ([what]) => {
    const told = el("dd");
    const show = ([, value]) => {
      if (!(value instanceof Node)) say(told, value);
      else if (told.textContent !== value.textContent) replace(told, value);
    };
    return { node: el("div", {}, el("dt", {}, what), told), set: show };
  });
}
