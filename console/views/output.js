// What one minion of a batch has returned, beside the list: states as a table, text as it is, anything else as JSON.

import { el, jobsOf, replace, say } from "../dom.js";
import { block, cut, duration, line, name } from "../format.js";
import { ending } from "../model/batches.js";
import { statesOf, textOf } from "../model/returned.js";
import { Trouble, badge } from "./parts.js";

/** Most characters of a return, and most states, that are shown. */
const [MOST, MOST_STATES] = [100_000, 500];

/** Return the node that shows what a minion has returned. `rest` says where to find what is not shown. */
export function returned(minion, value, rest) {
  const states = statesOf(value);
  if (states) return table(minion, states.slice(0, MOST_STATES));
  const text = textOf(value, MOST);
  const node = el("pre", { tabindex: 0, role: "region", "aria-label": "Output" });
  say(node, text.length > MOST ? `${text.slice(0, MOST)}…\n${rest}` : text);
  return node;
}

function table(minion, states) {
  const result = { true: ["completed", "true"], false: ["failed", "false"], null: ["pending", "would change"] };
  return el("table", { class: "results" }, el("caption", { class: "unseen" }, "States"),
    el("thead", {}, el("tr", {}, ["State", "Result", "Changes", "Took"].map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, states.map((row) => {
      const [state, word] = result[String(row.result)] ?? ["pending", line(row.result, 20)];
      const mark = el("span", { class: "badge", "data-state": state }, word);
      const changed = Object.keys(row.changes).length > 0 && el("pre", { tabindex: 0, role: "region", "aria-label": `Changes of ${row.id} on ${minion}` }, changesOf(row.changes));
      const cells = [[el("strong", {}, line(row.id, 200)), el("br"), el("span", { class: "id" }, line(row.fun, 100)), row.result === false && el("p", {}, line(row.comment, 2000))], mark, changed, duration(row.seconds, true)];
      return el("tr", { "data-state": state }, cells.map((cell, index) => el("td", { "data-of": ["", "Result", "Changes", "Took"][index] || null }, cell)));
    })));
}

/** Changes as text: a difference of files as it is. */
function changesOf(changes) {
  const lines = Object.entries(changes).map(([key, value]) => (typeof value === "string" ? (key === "diff" ? value : `${key}: ${value}`) : `${key}: ${block(value, 4000)}`));
  return cut(lines.join("\n"), 4000);
}

export class Output {
  /** @param {() => void} closed called when the panel is closed */
  constructor(app, jid, closed) {
    Object.assign(this, { app, jid, minion: null });
    this.trouble = new Trouble();
    this.head = el("h3", { tabindex: -1 });
    this.state = badge();
    this.told = el("span", { class: "quiet" });
    this.jobs = el("span");
    this.body = el("div");
    this.node = el("aside", { class: "output", "aria-label": "Output of a minion" },
      el("div", { class: "head" }, this.head, this.state.node, el("button", { type: "button", class: "plain", onclick: () => { this.minion = null; this.node.hidden = true; closed(); } }, "Close")),
      el("p", {}, this.told, " ", this.jobs), this.trouble.node, this.body);
    this.node.hidden = true;
  }

  /** Show a minion, an item of `Members.at`; read it if what is shown is of another minion or state. */
  async show(item, again = true) {
    const about = `${item.name} ${item.state}`;
    this.node.hidden = false;
    say(this.head, item.name);
    this.state.set(item.state);
    const ran = item.state !== "active" && item.since > item.started ? `, ${ending(item)} ${duration(item.since - item.started, true)}` : "";
    say(this.told, `${item.retcode === null || item.retcode === undefined ? "No exit code" : `Exit code ${item.retcode}`}${ran}`);
    if (again) this.node.scrollIntoView({ block: "nearest" });
    if (this.minion === about && !again) return;
    this.minion = about;
    replace(this.jobs, el("a", { href: jobsOf({ minion: item.name }) }, `Jobs of this minion`));
    replace(this.body, el("p", { class: "quiet" }, "Reading…"));
    const { value, error } = await this.app.read("batch.output", { jid: this.jid, minion: item.name });
    if (this.minion !== about) return; // another one was chosen meanwhile
    this.trouble.show(error);
    const none = ["pending", "active"].includes(item.state) ? "It has not returned yet." : `There is no return: the minion is ${name(item.state)}${value?.why ? `, and ${line(value.why)}` : ""}.`;
    replace(this.body, !error && (value?.return === null || value?.return === undefined ? el("p", {}, none) : returned(item.name, value.return, `The rest: salt-run batch.output ${this.jid} ${item.name}`)));
  }
}
