// Why minions did not succeed: minions with the same reason in one group, the largest group first.

import { el, replace, say } from "../dom.js";
import { count, line, many, name } from "../format.js";
import { Trouble } from "./parts.js";

/** Most groups, most names in a group, and most characters of a text that are shown. */
const GROUPS = 20;
const NAMES = 30;
const MOST = 4000;

export class Failures {
  /** @param {string} fun the runner function that returns the reasons */
  constructor(app, fun, jid) {
    Object.assign(this, { app, fun, jid, known: null, mended: new Set() });
    this.trouble = new Trouble();
    this.again = el("button", { type: "button", onclick: () => this.read() }, "Read again");
    this.list = el("div");
    this.head = el("h2", {}, "Minions without success");
    this.node = el("section", { class: "failures" }, this.head, this.trouble.node, this.list, this.again);
    this.node.hidden = true;
  }

  /** @param {number} wrong how many minions have failed; `over`: whether no more can; `mended`: names of those to leave out. */
  async want(wrong, over, mended = new Set()) {
    this.mended = mended;
    this.node.hidden = !wrong;
    const about = `${wrong} ${over}`;
    if (!wrong || this.known === about || (this.known && !over)) return;
    this.known = about;
    await this.read();
  }

  /** A group without its minions that were mended. */
  left({ count: size, minions, ...group }) {
    const names = Array.isArray(minions) ? minions.map(String) : [];
    const left = names.filter((minion) => !this.mended.has(minion));
    return { ...group, count: size - (names.length - left.length), minions: left };
  }

  /** `job_cache.outcome` also tells how a batch stands that goes on. */
  isUnderWay({ state }) {
    return this.fun === "job_cache.outcome" && ["active", "pending"].includes(state);
  }

  async read() {
    this.again.disabled = true;
    if (!this.list.hasChildNodes()) replace(this.list, el("p", { class: "quiet" }, "Reading…"));
    const { value, error } = await this.app.read(this.fun, { jid: this.jid });
    this.again.disabled = false;
    this.trouble.show(error);
    const groups = (Array.isArray(value?.groups) ? value.groups : []).map((one) => this.left(one)).filter((one) => one.count > 0 && !this.isUnderWay(one));
    replace(this.list, groups.slice(0, GROUPS).map(group), groups.length > GROUPS && el("p", { class: "quiet" }, `${many(groups.length - GROUPS, "more group")} not shown: salt-run ${this.fun} ${this.jid}`));
  }
}

function group({ count: size, state, retcode, text, minions: names }) {
  const code = Number.isInteger(retcode) ? `, exit code ${retcode}` : "";
  const node = el("pre", { tabindex: 0, role: "region", "aria-label": `What ${many(size, "minion")} say: ${name(state)}${code}` });
  say(node, typeof text === "string" ? text.slice(0, MOST) : line(text));
  node.hidden = !text;
  return el("article", { class: "reason" },
    el("h3", {}, `${many(size, "minion")}, ${name(state)}${code}`),
    node,
    el("p", { class: "id" }, names.slice(0, NAMES).join(", "), names.length > NAMES && ` and ${count(names.length - NAMES)} more`));
}
