// The retry queue: the jobs that each minion is owed, why they wait, and when they are tried next.

import { Chart } from "../chart.js";
import { confirm, open, tell, warn } from "../dialog.js";
import { el, say, set, to } from "../dom.js";
import { ago, block, count, line, many, moment, name, tempo } from "../format.js";
import { DAY, Series, flat } from "../model/series.js";
import { PURGEABLE, Queue, STATES, gist, keyOf, whyOf } from "../model/queue.js";
import { Reader } from "../reader.js";
import { Table, Trouble, action, badge, cell, choice, facts, field } from "./parts.js";

/** Above this many entries the list is not read without a filter: each entry is some 300 bytes. */
const MOST = 5000;
/** Most characters of the arguments of a job that are shown. */
const MOST_SHOWN = 5000;
/** Functions that change the queue without an event of an entry. */
const CHANGING = new Set(["job_retry.pause", "job_retry.resume", "job_retry.purge", "job_retry.retry"]);

/** The curves above the list: name of the figure, title, whether it is a counter, how a value reads. */
const aMinute = (value) => `${tempo(value)} a minute`;
const CHARTS = [
  ["saltext_jobs_retry_entries{pending}", "Owed", false, count],
  ["saltext_jobs_retry_transitions_total{queued}", "Queued", true, aMinute],
  ["saltext_jobs_retry_transitions_total{done}", "Delivered", true, aMinute],
  ["saltext_jobs_retry_transitions_total{expired}", "Expired", true, aMinute],
];

export class QueueView {
  constructor(app) {
    this.app = app;
    this.title = "Retry queue";
    this.queue = new Queue();
    this.stats = null;
    /** The filter of the list that is shown, which may differ from what is being typed. */
    this.of = {};
    this.trouble = new Trouble();
    this.noList = new Trouble();
    this.reader = new Reader(() => this.read(), 4);
    this.head = el("p", { class: "large" });
    this.pausedNote = el("p", { class: "remark" });
    this.states = new Set();
    this.chips = STATES.map((state) => ({ state, node: el("button", { type: "button", class: "chip", "data-state": state, "aria-pressed": "false", onclick: () => this.toggle(state) }) }));
    this.by = choice([["minion", "minion"], ["jid", "job"]]);
    this.by.addEventListener("change", () => app.draw());
    const filter = (label) => el("input", { type: "search", spellcheck: "false", autocapitalize: "none", "aria-label": label, onchange: () => this.load() });
    this.ofMinion = filter("Minion");
    this.ofJob = filter("Job");
    this.pause = action(app, "Pause the queue", "job_retry.pause", () => this.hold());
    this.resume = action(app, "Resume the queue", "job_retry.resume", () => this.do("resume", {}, () => "The queue is resumed."));
    this.purge = action(app, "Purge…", "job_retry.purge", () => this.forget(), "danger");
    /** Keys of the groups whose entries are shown, and of the chosen entries. */
    this.opened = new Set();
    this.chosen = new Set();
    const chosen = () => [...this.chosen].map((key) => this.queue.rows.get(key)).filter(Boolean);
    this.chosenNote = cell();
    this.retryChosen = action(app, "Retry the chosen…", "job_retry.retry", () => this.each("retry", chosen().filter(canRetry)));
    this.cancelChosen = action(app, "Cancel the chosen…", "job_retry.cancel", () => this.each("cancel", chosen().filter(canCancel)), "danger");
    this.noneChosen = el("button", { type: "button", onclick: () => { this.chosen.clear(); app.draw(); } }, "Choose none");
    this.bulk = el("div", { class: "row filter", role: "group", "aria-label": "What is chosen" }, this.chosenNote.node, this.retryChosen.node, this.cancelChosen.node, this.noneChosen);
    this.table = new Table("Entries", ["Choose", "Entry", "State", "Reason", "Next try", "Tries", "Owed since", ""], (item) => item.key, (item) => (item.entries ? this.groupRow(item) : this.row(item)), 200);
    this.charts = CHARTS.map(([figure, text, counter, read]) => ({ figure, counter, series: new Series(DAY), chart: new Chart(text, read, DAY) }));
    this.node = el("section", {}, this.trouble.node, this.head, this.pausedNote,
      el("div", { class: "charts" }, this.charts.map(({ chart }) => chart.node)),
      el("div", { class: "row actions" }, this.pause.node, this.resume.node, this.purge.node),
      el("div", { class: "row filter" }, this.chips.map((chip) => chip.node)),
      el("div", { class: "row filter" },
        field("by", "Group by", this.by), field("of-minion", "Minion", this.ofMinion), field("of-job", "Job", this.ofJob)),
      this.noList.node, this.bulk, this.table.node);
  }

  // -- reading --------------------------------------------------------------------------------------------------------

  load() {
    return this.reader.now();
  }

  filter() {
    const found = {};
    if (this.ofMinion.value.trim()) found.minion = this.ofMinion.value.trim();
    if (this.ofJob.value.trim()) found.jid = this.ofJob.value.trim();
    return found;
  }

  async read() {
    this.queue.begin();
    const filter = this.filter();
    const { value: stats, error } = await this.app.read("job_retry.stats");
    this.trouble.show(error);
    if (stats) this.stats = stats;
    this.tooMany = !Object.keys(filter).length && stats && stats.entries > MOST;
    if (this.tooMany) {
      this.queue.take([]);
      this.of = {};
      this.noList.show(new Error(`There are ${count(stats.entries)} entries: name a minion or a job to see them`));
    } else {
      const { value: list, error: trouble } = await this.app.read("job_retry.list", filter);
      this.noList.show(trouble);
      if (Array.isArray(list)) {
        if (this.queue.take(list)) this.reader.want();
        this.of = filter;
      } else this.queue.fail();
    }
    await this.readCharts();
    if (stats || this.queue.read) this.readAt = Date.now() / 1000;
    this.app.draw();
  }

  /** The curves of the last day, as the engine keeps them; without an engine there are none. */
  async readCharts() {
    const { value } = await this.app.read("job_retry.history");
    for (const one of this.charts) {
      one.series = new Series(DAY);
      for (const [at, figures] of Array.isArray(value) ? value : []) one.series.add(at, flat(figures)[one.figure]);
    }
  }

  hear(event) {
    if (event.kind === "called" && CHANGING.has(event.fun)) this.reader.want();
    if (event.kind !== "entry") return false;
    const { minion, jid } = this.filter();
    const shown = !this.tooMany && (!minion || minion === event.minion) && (!jid || jid === event.jid);
    // The figures above the list cover the entries that are not in it.
    if (!shown || this.queue.hear(event)) this.reader.want();
    return shown;
  }

  // -- showing --------------------------------------------------------------------------------------------------------

  draw() {
    const { stats, queue } = this;
    const filtered = Object.keys(this.filter()).length > 0;
    const found = this.tooMany && stats ? stats.states || {} : queue.counts();
    const now = this.app.api.now();
    for (const { series, counter, chart } of this.charts) {
      chart.node.hidden = series.points.length < 2;
      // The last point may be a minute old, and what is owed stands in the list below.
      const last = filtered || !(queue.read || this.tooMany) ? [] : [[now, found.pending || 0]];
      if (!chart.node.hidden) chart.draw(counter ? series.rates() : [...series.points, ...last], now);
    }
    if (stats) {
      const total = filtered || this.tooMany || !queue.read ? stats.entries : queue.rows.size;
      say(this.head, `${many(total, "entry", "entries")}${stats.engine ? "" : "; no job_retry engine runs on this master"}`);
      say(this.pausedNote, stats.paused ? "The queue is paused: nothing is delivered until it is resumed." : "");
      this.pausedNote.hidden = !stats.paused;
    } else if (queue.read) say(this.head, many(queue.rows.size, "entry", "entries"));
    for (const { state, node } of this.chips) {
      say(node, `${count(found[state] || 0)} ${name(state)}`);
      node.hidden = !found[state] && !this.states.has(state);
      set(node, "aria-pressed", String(this.states.has(state)));
    }
    this.pause.set(!stats?.paused);
    this.resume.set(Boolean(stats?.paused));
    this.purge.set(PURGEABLE.some((state) => found[state] > 0));
    const rows = [];
    const by = this.by.value;
    for (const { key, entries } of queue.grouped(by)) {
      const shown = this.states.size ? entries.filter((entry) => this.states.has(entry.state)) : entries;
      if (!shown.length) continue;
      // A group of one entry is shown as that entry, in one row.
      if (shown.length > 1) rows.push({ key: `${by} ${key}`, name: key, by, entries: shown });
      if (shown.length === 1 || this.opened.has(`${by} ${key}`)) rows.push(...shown.map((entry) => ({ key: `${by} ${keyOf(entry)}`, by, entry, alone: shown.length === 1 })));
    }
    for (const key of this.chosen) if (!queue.rows.has(key)) this.chosen.delete(key);
    const chosen = [...this.chosen].map((key) => queue.rows.get(key));
    this.bulk.hidden = !chosen.length;
    this.chosenNote.set(`${many(chosen.length, "entry", "entries")} chosen`);
    this.retryChosen.set(chosen.some(canRetry));
    this.cancelChosen.set(chosen.some(canCancel));
    this.table.draw(rows, queue.read && !this.tooMany ? "No entry matches: nothing is owed." : this.tooMany || !this.noList.node.hidden ? "" : "Reading…");
  }

  /** A box that chooses entries. */
  box(label, entries) {
    const node = el("input", { type: "checkbox", "aria-label": label });
    node.addEventListener("change", () => {
      for (const entry of entries()) {
        if (node.checked) this.chosen.add(keyOf(entry));
        else this.chosen.delete(keyOf(entry));
      }
      this.app.draw();
    });
    return { node, set: (all) => { node.checked = all.length > 0 && all.every((entry) => this.chosen.has(keyOf(entry))); } };
  }

  groupRow(group) {
    const { app } = this;
    const byMinion = group.by === "minion";
    const title = cell("span", { class: byMinion ? "id" : "jid" });
    const [states, why, tries, since] = [cell(), cell(), cell(), cell("time")];
    let shown = group;
    const box = this.box(`Choose all of ${group.name}`, () => shown.entries);
    const open = el("button", { type: "button", class: "plain", onclick: () => { if (!this.opened.delete(group.key)) this.opened.add(group.key); app.draw(); } });
    const of = () => ({ ...this.of, [group.by]: group.name }); // the filter of the list counts too
    const replay = action(app, "Replay now", "job_retry.replay", () => this.replay(group.name, this.groupOf(group)));
    const cancel = action(app, "Cancel all…", "job_retry.cancel", () => this.cancel(of(), this.groupOf(group)), "danger");
    const retry = action(app, "Retry all…", "job_retry.retry", () => this.retry(of(), this.groupOf(group)));
    return {
      cells: [box.node, [title.node, " ", open], states.node, why.node, "", tries.node, since.node, el("div", { class: "row" }, byMinion && replay.node, retry.node, cancel.node)],
      set: (now) => {
        shown = now;
        const told = gist(now.entries);
        box.set(now.entries);
        title.set(byMinion ? now.name : `${line(now.entries[0].fun, 60)} ${now.name}`);
        const opened = this.opened.has(group.key);
        say(open, opened ? "hide them" : many(now.entries.length, byMinion ? "job" : "minion"));
        set(open, "aria-expanded", String(opened));
        states.set(told.states.map(([state, size]) => `${count(size)} ${name(state)}`).join(", "));
        why.set(`${line(told.reason, 160)}${told.others ? `, and ${many(told.others, "other reason")}` : ""}`);
        tries.set(count(told.attempts));
        since.set(ago(told.since, app.api.now()));
        replay.set(now.entries.some(isPending) && !this.stats?.paused);
        retry.set(now.entries.some(canRetry));
        cancel.set(now.entries.some(canCancel));
      },
    };
  }

  groupOf(group) {
    return [...this.queue.rows.values()].filter((entry) => String(entry[group.by]) === group.name);
  }

  row(item) {
    const { app } = this;
    const of = { minion: item.entry.minion, jid: item.entry.jid };
    const now = () => [this.queue.rows.get(keyOf(of))].filter(Boolean);
    const [state, title, why, next, tries, since] = [badge(), cell("button", { type: "button", class: "plain link" }), cell(), cell(), cell(), cell("time")];
    title.node.addEventListener("click", () => this.show(of));
    const box = this.box(`Choose ${of.minion}, job ${of.jid}`, now);
    const replay = action(app, "Replay now", "job_retry.replay", () => this.replay(of.minion, now()));
    const retry = action(app, "Retry…", "job_retry.retry", () => this.retry(of, now()));
    const cancel = action(app, "Cancel…", "job_retry.cancel", () => this.cancel(of, now()), "danger");
    return {
      cells: [box.node, title.node, state.node, why.node, next.node, tries.node, since.node, el("div", { class: "row" }, replay.node, retry.node, cancel.node)],
      set: ({ entry, by, alone }) => {
        const job = `${line(entry.fun, 60)} ${entry.jid}`;
        title.set(alone ? `${entry.minion}: ${job}` : by === "minion" ? job : entry.minion);
        box.set([entry]);
        state.set(entry.state);
        why.set(line(whyOf(entry), 200));
        next.set(nextTry(entry, app.api.now(), this.stats?.paused));
        tries.set(count(entry.attempts));
        since.set(ago(entry.queued_at, app.api.now()));
        replay.set(alone && by === "minion" && isPending(entry) && !this.stats?.paused);
        retry.set(canRetry(entry));
        cancel.set(canCancel(entry));
      },
    };
  }

  async show({ minion, jid }) {
    const { value, error } = await this.app.read("job_retry.show", { minion, jid });
    const list = el("dl", { class: "facts" });
    const trouble = new Trouble();
    trouble.show(error);
    if (value) {
      facts(list, [["Function", line(value.fun)], ["State", name(value.state)], ["Reason", line(value.reason)], ["Arguments", el("pre", {}, block(value.arg, MOST_SHOWN))],
        ["Target", line(value.tgt)], ["User", line(value.user)], ["Published", moment(value.published_at)], ["Expires", moment(value.expires_at)],
        ["Not before", moment(value.not_before)], ["Waits for", line(value.waits_for)], ["Opens", moment(value.opens_at)], ["Asked for by", value.asked_for_by && line(value.asked_for_by)]]);
    }
    const history = Array.isArray(value?.history) ? value.history : [];
    await open(`${minion}, job ${jid}`, [trouble.node, list,
      history.length > 0 && el("ol", { class: "history" }, history.map((step) => el("li", {}, `${moment(step.at)}: ${name(step.state)}, ${line(step.reason)}`)))].filter(Boolean),
      (close) => [el("a", { href: to("jobs", jid), class: "button", onclick: () => close() }, "Returns of this job"), el("button", { type: "button", onclick: () => close() }, "Close")]);
  }

  toggle(state) {
    if (!this.states.delete(state)) this.states.add(state);
    this.app.draw();
  }

  tick() {
    this.app.draw();
  }

  // -- acting ---------------------------------------------------------------------------------------------------------

  async do(verb, kwarg, says) {
    await this.app.act(`job_retry.${verb}`, kwarg, says);
    await this.load();
  }

  async hold() {
    const says = ["Nothing is delivered to any minion until the queue is resumed. Jobs that minions miss are still queued, and still expire."];
    if (await confirm("Pause the retry queue?", says, "Pause the queue")) await this.do("pause", {}, () => "The queue is paused.");
  }

  async replay(minion, entries) {
    const says = [`Every job owed to ${minion} is delivered now, even if its window is shut. The filter here does not limit this.`];
    if (entries.some((entry) => entry.waits_for) && !(await confirm("Replay outside of a window?", says, "Replay now"))) return;
    await this.do("replay", { minion }, (value) => `${minion} is asked: ${many(value, "entry waits", "entries wait")} for it.`);
  }

  async retry(of, entries) {
    const says = [`${words(of)}: ${many(entries.filter(canRetry).length, "entry", "entries")} may be delivered again.`,
      "A held job may have been begun, and it is not known how far it got. Look at the minion before you run the job again."];
    if (await confirm("Try again?", says, "Try again")) await this.do("retry", of, (value) => `${many(value, "entry is", "entries are")} tried again.`);
  }

  async cancel(of, entries) {
    const under = entries.filter((entry) => ["claimed", "sent", "running"].includes(entry.state)).length;
    const says = [`${words(of)}: ${many(entries.filter(canCancel).length, "entry", "entries")} will not be delivered.`];
    if (under) says.push(`${many(under, "of them is", "of them are")} under way: the minion may have the job already, and it is not killed there.`);
    if (await confirm("Cancel?", says, "Do not deliver")) await this.do("cancel", of, (value) => `${many(value, "entry is", "entries are")} cancelled.`);
  }

  /** Retry or cancel each entry, and report once. */
  async each(verb, entries) {
    const retries = verb === "retry";
    const says = [`${many(entries.length, "entry", "entries")} ${retries ? "may be delivered again" : "will not be delivered"}.`];
    if (retries) says.push("A held job may have been begun, and it is not known how far it got. Look at the minions before you run the job again.");
    if (!(await confirm(retries ? "Try these again?" : "Cancel these?", says, retries ? "Try again" : "Do not deliver"))) return;
    let done = 0;
    for (const { minion, jid } of entries) {
      const { error } = await this.app.read(`job_retry.${verb}`, { minion, jid });
      if (error) {
        warn(`${minion}, job ${jid}: ${error.message}`);
        break;
      }
      done += 1;
      this.chosen.delete(keyOf({ minion, jid }));
    }
    tell(`${count(done)} of ${many(entries.length, "entry is", "entries are")} ${retries ? "tried again" : "cancelled"}.`);
    await this.load();
  }

  async forget() {
    const found = this.tooMany && this.stats ? this.stats.states : this.queue.counts();
    const boxes = PURGEABLE.map((state) => [state, el("input", { type: "checkbox", id: `purge-${state}`, checked: state !== "held" })]);
    const chosen = await open("Purge the queue?", [
      el("p", {}, "All entries in these states are forgotten, for all minions: the filter here does not limit this. Forgotten held jobs are never delivered."),
      el("div", {}, boxes.map(([state, box]) => el("p", {}, box, " ", el("label", { for: `purge-${state}` }, `${name(state)} (${count(found[state] || 0)} shown)`)))),
    ], (close) => [
      el("button", { type: "button", class: "danger", onclick: () => close(boxes.filter(([, box]) => box.checked).map(([state]) => state)) }, "Forget them"),
      el("button", { type: "button", onclick: () => close() }, "Cancel"),
    ]);
    if (chosen?.length) await this.do("purge", { state: chosen }, (value) => `${many(value, "entry is", "entries are")} forgotten.`);
  }

  close() {
    this.reader.close();
  }
}

function isPending(entry) {
  return entry.state === "pending";
}

function canRetry(entry) {
  return entry.state === "held" || entry.state === "dead";
}

function canCancel(entry) {
  return ["pending", "claimed", "sent", "running", "held"].includes(entry.state);
}

function words(of) {
  return [of.minion && `Minion ${of.minion}`, of.jid && `job ${of.jid}`].filter(Boolean).join(", ");
}

/** What an entry waits for, and until when. */
function nextTry(entry, now, paused) {
  if (entry.state !== "pending") return entry.state === "held" || entry.state === "dead" ? "when an operator retries it" : "–";
  if (paused) return "when the queue is resumed";
  const opens = entry.opens_at;
  if (Number.isFinite(opens)) return `${ago(opens, now)}, when its window opens`;
  if (entry.waits_for) return "when its window opens";
  const before = entry.not_before;
  const expires = entry.expires_at;
  const until = Number.isFinite(expires) ? `; expires ${ago(expires, now)}` : "";
  return (Number.isFinite(before) && before > now ? ago(before, now) : "at a sign of life") + until;
}
