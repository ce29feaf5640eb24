// The form for a new batch. It starts nothing before it has shown which minions match.

import { warn } from "../dialog.js";
import { el, replace, say, set, to } from "../dom.js";
import { count, line, many, typed } from "../format.js";
import { command } from "../model/batches.js";
import { completed, completions, kept, used } from "../model/draft.js";
import { keepDraft, keptDraft } from "../session.js";
import { Trouble, action, choice, field } from "./parts.js";

const TYPES = ["glob", "list", "grain", "compound", "nodegroup", "pcre", "grain_pcre", "pillar", "pillar_pcre", "pillar_exact", "ipcidr", "range"].map((one) => [one, one]);
/** Functions that run states: their first argument is completed. */
const STATES = new Set(["state.apply", "state.sls", "state.show_sls", "state.test"]);
/** Functions that are offered before any job has run. */
const FUNCTIONS = ["state.apply", "test.ping", "test.version", "cmd.run", "pkg.upgrade", "pkg.list_upgrades", "service.restart", "service.status", "saltutil.refresh_pillar", "saltutil.sync_all"];
/** Most minions that are shown by name. */
const MOST = 500;

export class StartView {
  /** @param {string} asked the fields of a form that was kept as a link, as in the address behind `?` */
  constructor(app, _jid, asked = "") {
    this.app = app;
    this.title = "Start a batch";
    /** Counts changes and questions, so that an answer about an earlier state of the form is not shown. */
    this.turn = 0;
    this.told = null;
    const text = (name, more = {}) => el("input", { name, spellcheck: "false", autocapitalize: "none", autocomplete: "off", ...more });
    this.inputs = {
      tgt: text("tgt", { required: true, placeholder: "web*", list: "targets" }),
      tgt_type: choice(TYPES),
      fun: text("fun", { required: true, placeholder: "state.apply", list: "functions" }),
      arg: el("textarea", { name: "arg", rows: 2, spellcheck: "false" }),
      kwarg: el("textarea", { name: "kwarg", rows: 2, spellcheck: "false" }),
      batch: text("batch", { placeholder: "10%" }),
      max_failures: text("max_failures"),
      by: text("by", { placeholder: "grains:rack" }),
      check: text("check", { placeholder: "approve" }),
      approve_by: text("approve_by", { placeholder: "anna,%ops" }),
      window: text("window", { placeholder: "Sat,Sun 02:00-05:00" }),
      timezone: text("timezone", { placeholder: "Europe/Berlin" }),
      start_at: text("start_at", { placeholder: "2026-11-28 02:00" }),
      max_runtime: text("max_runtime", { placeholder: "1h" }),
      offline: choice([["", "skip (default)"], ["fail", "fail"], ["queue", "queue"]]),
      presence: choice([["", "ping (default)"], ["none", "none"]]),
    };
    const { inputs } = this;
    /** What completes the form: recent jobs, and the master's nodegroups and states. */
    this.known = { jobs: [], nodegroups: [], sls: [] };
    this.functions = el("datalist", { id: "functions" });
    this.targets = el("datalist", { id: "targets" });
    this.states = el("p", { class: "row", "aria-label": "States" });
    this.trouble = new Trouble();
    this.matched = el("div", { class: "matched", "aria-live": "polite" });
    /** The filled form as a link, to be kept as a bookmark or sent. */
    this.link = el("a", {}, "This form as a link");
    this.preview = action(app, "Show which minions match", "batch.preview", () => this.match());
    this.start = action(app, "Start the batch", "batch.start", () => this.begin(), "primary");
    // Enter in a field clicks the button that submits.
    set(this.preview.node, "type", "submit");
    const part = (title, ...fields) => el("fieldset", {}, el("legend", {}, title), el("div", { class: "fields" }, fields));
    this.node = el("form", { class: "start", onsubmit: (event) => event.preventDefault(), oninput: () => this.typing(), onchange: () => this.typing() },
      part("What",
        field("fun", "Function", inputs.fun), this.functions,
        field("arg", "Arguments, one a line", inputs.arg, "Numbers, true, false, null, and lists and mappings in JSON keep their type; all else is text."), this.states),
      part("Where",
        field("tgt", "Target", inputs.tgt), this.targets,
        field("tgt_type", "Kind of target", inputs.tgt_type, "A list is written with commas.")),
      part("How fast, and when to stop",
        field("batch", "Minions at a time", inputs.batch, "A count (10), a percentage (25%) or a ramp (1,10%,50%)."),
        field("max_failures", "Stop after more failures than", inputs.max_failures, "A count (0 for the first failure) or a percentage.")),
      (this.more = el("details", {}, el("summary", {}, "More: keyword arguments, absent minions, groups, checks, times"), el("div", {},
        part("Job and minions",
          field("kwarg", "Keyword arguments, one a line", inputs.kwarg, "name=value"),
          field("max_runtime", "Longest run on a minion", inputs.max_runtime),
          field("offline", "Minions that do not answer", inputs.offline),
          field("presence", "Ask first which minions are there", inputs.presence)),
        part("Groups and checks",
          field("by", "One group after the other, by", inputs.by, "A grain, a pillar key or nodegroups."),
          field("check", "Check between stages", inputs.check, "A function, runner:…, or approve; made after each stage of a ramp and each group but the last."),
          field("approve_by", "Who may approve", inputs.approve_by, "Users; groups begin with %. The user who starts the batch may not.")),
        part("When",
          field("start_at", "Begin at", inputs.start_at),
          field("window", "Send only within", inputs.window),
          field("timezone", "Time zone of these", inputs.timezone, "The master's, unless another is named."))))),
      el("div", { class: "whole" }, this.trouble.node, el("div", { class: "row actions" }, this.preview.node, this.start.node, el("button", { type: "button", onclick: () => this.clear() }, "Clear the form"), this.link), this.matched));
    this.fill(kept(asked ? Object.fromEntries(new URLSearchParams(asked)) : keptDraft()));
    this.relink();
    this.complete();
  }

  fill(draft) {
    for (const [name, input] of Object.entries(this.inputs)) {
      input.value = draft[name] ?? (name === "tgt_type" ? "glob" : "");
    }
    this.more.open = [...this.more.querySelectorAll("input, textarea, select")].some((input) => input.value);
  }

  clear() {
    this.fill({});
    this.typing();
  }

  /** What the form holds. */
  draft() {
    return kept(Object.fromEntries(Object.entries(this.inputs).map(([name, input]) => [name, input.value])));
  }

  relink() {
    set(this.link, "href", `#/start?${new URLSearchParams(this.draft())}`);
  }

  /** The form has changed: keep it over a reload of the page, and hide the minions, which may not match any more. */
  typing() {
    keepDraft(this.draft());
    this.relink();
    this.forget();
    this.complete();
  }

  /** Offer what completes the function, the target and the states. */
  complete() {
    const { fun, tgt_type: kind, arg } = this.inputs;
    const offer = (list, names) => replace(list, names.map((name) => el("option", { value: name })));
    const { jobs, nodegroups, sls } = this.known;
    offer(this.functions, [...new Set([...used(jobs, "Function"), ...FUNCTIONS])]);
    const same = jobs.filter((job) => job["Target-type"] === kind.value);
    offer(this.targets, kind.value === "nodegroup" ? nodegroups : used(same, "Target"));
    const found = STATES.has(fun.value.trim()) ? completions(arg.value, sls) : [];
    this.states.hidden = !found.length;
    replace(this.states, found.map((name) => el("button", { type: "button", class: "plain", onclick: () => {
      arg.value = completed(arg.value, name);
      this.typing();
      arg.focus();
    } }, name)));
  }

  /** The form as arguments of batch.start. */
  wanted() {
    const found = {};
    for (const [name, input] of Object.entries(this.inputs)) {
      if (input.value.trim()) found[name] = input.value.trim();
    }
    if (found.tgt_type === "list") found.tgt = found.tgt.split(",").map((one) => one.trim()).filter(Boolean);
    for (const name of ["max_failures", "start_at"]) if (name in found) found[name] = typed(found[name]);
    const lines = (text = "") => text.split("\n").filter((one) => one.trim());
    found.arg = lines(found.arg).map(typed);
    const pairs = lines(found.kwarg).map((one) => /^\s*([A-Za-z_]\w*)\s*=(.*)$/s.exec(one) || [one]);
    const wrong = pairs.find((pair) => pair.length === 1);
    if (wrong) throw new Error(`“${wrong[0]}” is not a keyword argument; write name=value`);
    found.kwarg = Object.fromEntries(pairs.map(([, name, value]) => [name, typed(value)]));
    return found;
  }

  async match() {
    if (!this.node.reportValidity()) return;
    let wanted;
    try {
      wanted = this.wanted();
    } catch (error) {
      this.trouble.show(error);
      return;
    }
    say(this.matched, "Matching…");
    const turn = (this.turn += 1);
    const { value, error } = await this.app.read("batch.preview", wanted);
    if (turn !== this.turn) return; // the form has changed meanwhile
    replace(this.matched);
    this.trouble.show(error);
    this.told = null;
    if (error || !value) return;
    this.told = JSON.stringify(wanted);
    this.total = value.total;
    this.show(value);
  }

  show(found) {
    const unsure = found.unsure;
    const names = found.minions.slice(0, MOST);
    replace(this.matched,
      el("h2", {}, `${many(found.total, "minion matches", "minions match")}`),
      el("p", { class: "large" }, `${line(command(found), 300)} on ${line(found.sentence, 500)}.`),
      found.check && el("p", { class: "remark" }, `${found.check === "approve" ? "A user has to approve" : `${line(found.check)} has to hold`} after minion ${found.check_after.slice(0, 20).map(count).join(", ")}${found.check_after.length > 20 ? ", …" : ""}.`),
      found.max_in_flight && el("p", { class: "remark" }, `Minions in flight at once over all batches, at most: ${count(found.max_in_flight)}.`),
      found.groups && el("p", {}, "Groups, in this order: ", found.groups.map(([group, size]) => `${line(group, 40)} (${count(size)})`).join(", ")),
      unsure.length > 0 && el("p", { class: "remark" }, `Left out: ${many(unsure.length, "minion")} of which the master has no grains and pillar: ${unsure.slice(0, 20).map((minion) => line(minion, 40)).join(", ")}${unsure.length > 20 ? ", …" : ""}.`),
      el("ul", { class: "names" }, names.map((minion) => el("li", { class: "id" }, minion))),
      found.minions.length > MOST && el("p", { class: "quiet" }, `${count(found.minions.length - MOST)} more are not shown.`));
  }

  /** The form has changed: hide the minions, which may not match any more. */
  forget() {
    this.turn += 1;
    replace(this.matched);
    this.told = null;
    this.draw();
  }

  async begin() {
    const wanted = this.wanted();
    if (JSON.stringify(wanted) !== this.told) {
      this.forget();
      return;
    }
    const started = await this.app.act("batch.start", wanted, (value) => `Batch ${value.jid} is started on ${many(value.total, "minion")}.`);
    // The target is matched again: a minion may have been accepted or removed since.
    if (started && started.total !== this.total) warn(`${many(this.total, "minion")} matched when they were shown, and ${count(started.total)} when the batch was started.`);
    if (started) keepDraft({});
    if (started && started.jid) location.hash = to("batches", started.jid);
  }

  /** Read what completes the form. A user who may not read it types without. */
  async load() {
    const [jobs, choices] = await Promise.all([this.app.read("job_cache.search", { limit: 200 }), this.app.read("job_console.choices", {})]);
    const names = (found) => (Array.isArray(found) ? found.filter((name) => typeof name === "string") : []);
    this.known = { jobs: jobs.value?.jobs ?? [], nodegroups: names(choices.value?.nodegroups), sls: names(choices.value?.sls) };
    this.complete();
  }

  hear() {
    return false;
  }

  draw() {
    this.preview.set();
    this.start.set(Boolean(this.told));
  }

  close() {}
}
