// One job with its returns.

import { el, replace, say, set, to } from "../dom.js";
import { count, line, name, published, target } from "../format.js";
import { draftOf } from "../model/draft.js";
import { FATES, countsOf, returnsOf, worstFirst, wrongOf } from "../model/jobs.js";
import { statesOf, textOf } from "../model/returned.js";
import { Reader } from "../reader.js";
import { keepDraft } from "../session.js";
import { Failures } from "./failures.js";
import { returned } from "./output.js";
import { Table, Trouble, badge, cell, facts } from "./parts.js";

/** Most characters of a return that are shown at first, and after a click on "more". */
const MOST = 2000;
const MORE = 500_000;

export class JobView {
  constructor(app, jid) {
    Object.assign(this, { app, jid, title: `Job ${jid}`, job: null, ran: null, returns: [] });
    this.trouble = new Trouble();
    this.failures = new Failures(app, "job_cache.outcome", jid);
    this.reader = new Reader(() => this.read(), 4);
    this.states = new Set();
    this.facts = el("dl", { class: "facts" });
    this.copy = el("button", { type: "button", onclick: () => { keepDraft(draftOf(this.ran)); location.hash = "#/start"; } }, "Copy to a new batch");
    this.copy.hidden = true;
    this.head = el("p", { class: "large", "aria-live": "polite" });
    this.chips = FATES.map((state) => ({ state, node: el("button", { type: "button", class: "chip", "data-state": state, "aria-pressed": "false", onclick: () => { if (!this.states.delete(state)) this.states.add(state); app.draw(); } }) }));
    this.search = el("input", { type: "search", id: "return-search", spellcheck: "false", oninput: () => app.draw() });
    this.table = new Table("Returns", ["Minion", "State", "Return"], (item) => item.minion, () => this.row(), 50);
    this.node = el("section", {},
      el("p", {}, el("a", { href: app.searched ?? "#/jobs" }, "← Jobs"), " · ", el("a", { href: to("batches", jid) }, "This job as a batch")),
      this.trouble.node, this.head, this.copy, this.facts, this.failures.node,
      el("h2", {}, "Returns"),
      el("div", { class: "row filter" }, el("label", { for: "return-search" }, "Find a minion"), this.search, this.chips.map((chip) => chip.node)),
      this.table.node);
  }

  load() {
    return this.reader.now();
  }

  async read() {
    const { value, error } = await this.app.read("jobs.list_job", { jid: this.jid });
    const found = value && typeof value === "object" ? value : null;
    const unknown = found && (found.Error || found.Function === "unknown-function");
    this.trouble.show(error || (unknown ? new Error(`The job cache has no job ${this.jid}`) : null));
    if (found && !unknown) {
      // Salt's own answer has the arguments with their secrets, and nothing of batches and the retry queue.
      const known = (await this.app.read("job_cache.outcome", { jid: this.jid })).value;
      this.ran = { fun: found.Function, arguments: ["********"], tgt: found.Target, tgt_type: found["Target-type"], ...known };
      this.job = found;
      this.returns = worstFirst(returnsOf(found, known));
      this.readAt = Date.now() / 1000;
    }
    this.app.draw();
    const wrong = wrongOf(this.returns);
    await this.failures.want(wrong, wrong + countsOf(this.returns).returned === this.returns.length);
  }

  hear(event) {
    // An event tells that a minion has returned; only the return in the job cache counts.
    if (event.jid === this.jid && (event.kind === "returned" || event.kind === "published")) this.reader.want();
    return false;
  }

  draw() {
    const { job } = this;
    if (!job) {
      say(this.head, this.trouble.node.hidden ? "Reading…" : "");
      for (const { node } of this.chips) node.hidden = true;
      return;
    }
    this.copy.hidden = false;
    const found = countsOf(this.returns);
    say(this.head, `${count(found.returned + found.failed)} of ${count(this.returns.length)} returned${found.failed ? `, ${count(found.failed)} failed` : ""}`);
    facts(this.facts, [["Ran", el("span", { class: "id" }, line([this.ran.fun, ...this.ran.arguments].join(" "), 500))], ["Target", target(job.Target, job["Target-type"])], ["User", line(job.User)],
      ["Published", published(this.jid)]]);
    for (const { state, node } of this.chips) {
      say(node, `${count(found[state])} ${name(state)}`);
      node.hidden = !found[state] && !this.states.has(state);
      set(node, "aria-pressed", String(this.states.has(state)));
    }
    const text = this.search.value.toLowerCase();
    const shown = this.returns.filter(({ minion, state }) => (!this.states.size || this.states.has(state)) && minion.toLowerCase().includes(text));
    this.table.draw(shown, this.returns.length ? "No minion matches." : "No minion has returned.");
  }

  row() {
    const [minion, state] = [cell("span", { class: "id" }), badge()];
    const value = el("pre", { tabindex: 0, role: "region", "aria-label": "Return" });
    const all = el("button", { type: "button", class: "plain link" }, "Show more of it");
    const states = el("div");
    let most = MOST;
    let shown = null;
    const show = () => {
      const text = shown.value === null && shown.state !== "returned" ? "" : textOf(shown.value, most);
      const code = shown.code ? `exit code ${line(shown.code)}\n` : "";
      const rest = most === MOST ? "" : `\nThe rest: salt-run jobs.list_job ${this.jid}`;
      all.hidden = text.length <= most || most === MORE;
      value.hidden = !(code + text);
      say(value, code + (text.length > most ? `${text.slice(0, most)}…${rest}` : text));
    };
    all.addEventListener("click", () => { most = MORE; show(); });
    return {
      cells: [minion.node, state.node, [states, value, all]],
      set: (item) => {
        minion.set(item.minion);
        set(value, "aria-label", `Return of ${item.minion}`);
        state.set(item.state);
        if (shown === item) return;
        shown = item;
        const run = statesOf(item.value) !== null;
        replace(states, run && returned(item.minion, item.value, ""));
        value.hidden = run;
        if (run) all.hidden = true;
        else show();
      },
    };
  }

  close() {
    this.reader.close();
  }
}
