// The health page: what the doctor finds, and the engines' figures over the last hour.

import { Chart } from "../chart.js";
import { el, keyed, say } from "../dom.js";
import { ago, count, duration, line, many, name, tempo } from "../format.js";
import { Series, flat } from "../model/series.js";
import { Reader } from "../reader.js";
import { Trouble, badge } from "./parts.js";

/** Where an engine's figures are, and its charts: name of the figure, title, whether it is a counter, how a value reads. */
const ENGINES = [
  ["batch_manager", "Batches", "batch.history", [
    ["saltext_jobs_batch_in_flight_minions", "Minions in flight", false, count],
    ["saltext_jobs_batch_pending_minions", "Minions to be sent to", false, count],
    ["saltext_jobs_batch_minions_total{completed}", "Minions completed", true, aMinute],
    ["saltext_jobs_publishes_total{batch_manager}", "Publishes", true, aMinute],
    ["saltext_jobs_loop_lag_seconds{batch_manager}", "Loop lag", false, lag],
  ]],
  ["job_retry", "Job retry", "job_retry.history", [
    ["saltext_jobs_retry_entries{pending}", "Entries that wait", false, count],
    ["saltext_jobs_retry_entries{held}", "Entries held", false, count],
    ["saltext_jobs_retry_transitions_total{sent}", "Replays", true, aMinute],
    ["saltext_jobs_retry_oldest_pending_seconds", "Age of the oldest entry that waits", false, duration],
    ["saltext_jobs_loop_lag_seconds{job_retry}", "Loop lag", false, lag],
  ]],
  ["job_recorder", "Job recorder", "job_recorder.history", [
    ["saltext_jobs_recorder_records_total", "Records delivered", true, aMinute],
    ["saltext_jobs_loop_lag_seconds{job_recorder}", "Loop lag", false, lag],
  ]],
];
/** Seconds within which a running engine shows several signs of life. */
const SILENT = 15;

export class HealthView {
  constructor(app) {
    this.app = app;
    this.title = "Health";
    this.reader = new Reader(() => this.readFigures(), 15);
    this.doctor = doctor();
    this.masters = masters();
    this.engines = ENGINES.map((engine) => new Engine(...engine));
    this.again = el("button", { type: "button", onclick: () => this.load() }, "Examine again");
    this.node = el("section", {}, this.again,
      el("h2", {}, "Findings"), el("div", { class: "cards" }, this.doctor.node, this.masters.node),
      el("h2", {}, "The last hour"), this.engines.map((one) => one.node));
  }

  async load() {
    this.again.disabled = true;
    const examined = this.doctor.read(this.app).then((parts) => this.engines.forEach((one) => { one.node.hidden = parts[one.engine] === "not configured"; }));
    await Promise.all([this.reader.now(), this.masters.read(this.app), examined]);
    this.again.disabled = false;
    this.readAt = Date.now() / 1000;
  }

  async readFigures() {
    await Promise.all(this.engines.map((one) => one.read(this.app)));
    this.app.draw();
  }

  hear(event) {
    // Figures change only when something happens, so an idle fleet causes no reads.
    if (event.kind === "batch" || event.kind === "entry") this.reader.want();
    return event.kind === "beat";
  }

  draw() {
    for (const one of this.engines) one.draw(this.app);
  }

  tick() {
    this.draw();
  }

  close() {
    this.reader.close();
  }
}

/** What does not work, and below that, advice. */
function doctor() {
  const [trouble, faults, advice] = [new Trouble(), el("ul", { class: "findings" }), el("ul", { class: "findings quiet" })];
  const [said, state] = [el("p", { class: "quiet" }), badge()];
  const show = (list, texts) => keyed(list, texts, (text) => text, (text) => ({ node: el("li", {}, text), set() {} }));
  return {
    node: el("article", { class: "card" }, el("h3", {}, "Doctor", " ", state.node), trouble.node, said, faults, advice),
    async read(app) {
      say(said, "Examining…");
      const { value, error } = await app.read("jobs_doctor.run");
      const told = Array.isArray(value?.findings);
      trouble.show(error || (told ? null : new Error("The answer is not a list of findings")));
      const findings = told ? value.findings.filter(Boolean) : [];
      const [wrong, rest] = [true, false].map((is) => findings.filter(({ severity }) => (severity !== "advice") === is));
      say(said, told ? Object.entries(value.parts ?? {}).map(([part, how]) => `${name(part)}: ${line(how)}`).join("; ") : "");
      state.node.hidden = !told;
      state.set(wrong.length ? many(wrong.length, "fault") : "well");
      show(faults, wrong.map((one) => `${one.part ? `${name(one.part)}: ` : ""}${found(one)}`));
      show(advice, rest.map((one) => `Advice: ${found(one)}`));
      return value?.parts ?? {};
    },
  };
}

function found({ text, do: what, code }) {
  return `${line(text, 2000)}${what ? `: ${line(what, 2000)}` : ""} [${line(code)}]`;
}

/** Which master leads each engine, and which others there are. */
function masters() {
  const [trouble, list] = [new Trouble(), el("ul", { class: "findings" })];
  return {
    node: el("article", { class: "card" }, el("h3", {}, "Masters"), trouble.node, list),
    async read(app) {
      const { value, error } = await app.read("batch.masters");
      const engines = value?.engines;
      const told = engines && typeof engines === "object";
      trouble.show(error || (told ? null : new Error("The answer names no engines")));
      keyed(list, told ? Object.entries(engines).map(lead) : [], (text) => text, (text) => ({ node: el("li", {}, text), set() {} }));
    },
  };
}

function lead([engine, { leader, masters: all }]) {
  const others = Object.entries(all ?? {}).filter(([one]) => one !== leader).map(([one, { state }]) => `${line(one)}: ${line(state)}`);
  return `${line(engine)}: ${leader ? `${line(leader)} leads` : "no master leads"}${others.length ? `; ${others.join(", ")}` : ""}`;
}

/** The figures of one engine. */
class Engine {
  constructor(engine, title, fun, charts) {
    Object.assign(this, { engine, fun, series: new Map() });
    this.trouble = new Trouble();
    this.alive = el("span", { class: "quiet" });
    this.charts = charts.map(([figure, text, counter, read]) => ({ figure, counter, chart: new Chart(text, read) }));
    this.box = el("div", { class: "charts" }, this.charts.map(({ chart }) => chart.node));
    this.node = el("section", {}, el("h3", {}, title, " ", this.alive), this.trouble.node, this.box);
  }

  async read(app) {
    const { value, error } = await app.read(this.fun);
    this.trouble.show(error);
    if (!Array.isArray(value)) return;
    this.series.clear();
    for (const [at, figures] of value) {
      for (const [figure, number] of Object.entries(flat(figures))) {
        if (!this.series.has(figure)) this.series.set(figure, new Series());
        this.series.get(figure).add(at, number);
      }
    }
  }

  draw(app) {
    const beat = app.beats.last(this.engine);
    const silent = beat === undefined ? Infinity : Date.now() / 1000 - beat;
    say(this.alive, !app.stream?.open ? "" : silent < SILENT ? "shows signs of life" : beat === undefined ? "no sign of life yet" : `last sign of life ${ago(beat, Date.now() / 1000)}`);
    this.box.hidden = !this.series.size;
    const now = app.api.now();
    for (const { figure, counter, chart } of this.charts) {
      const found = this.series.get(figure);
      chart.draw(found ? (counter ? found.rates() : found.points) : [], now);
    }
  }
}

function aMinute(value) {
  return `${tempo(value)} a minute`;
}

function lag(value) {
  return `${Math.round(value * 1000)} ms`;
}
