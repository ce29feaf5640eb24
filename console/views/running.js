// What runs now, as the minions themselves say. The minions are asked, so this is read when the user wants it, not by events.

import { el, replace, say, to } from "../dom.js";
import { ago, line, many } from "../format.js";
import { command } from "../model/batches.js";
import { Trouble, action } from "./parts.js";

/** Most jobs, and most names of silent minions, that are shown. */
const MOST = 100;
const NAMES = 20;

export class Running {
  constructor(app) {
    this.app = app;
    this.trouble = new Trouble();
    this.button = action(app, "What runs now", "job_cache.running", () => this.read());
    this.told = el("p", { class: "quiet", role: "status" });
    this.list = el("ul", { class: "running" });
    this.node = el("section", {}, this.button.node, this.trouble.node, this.told, this.list);
  }

  async read() {
    say(this.told, "Asking the minions…");
    const { value, error } = await this.app.read("job_cache.running");
    this.trouble.show(error);
    const jobs = Array.isArray(value?.jobs) ? value.jobs : [];
    const silent = Array.isArray(value?.silent) ? value.silent.map(String) : [];
    const missed = silent.length ? ` ${many(silent.length, "minion")} did not answer: ${silent.slice(0, NAMES).join(", ")}${silent.length > NAMES ? ", …" : ""}.` : "";
    const idle = jobs.filter(({ minions }) => !minions?.length).length; // batches that wait, or have yet to send
    const also = idle ? `, and ${many(idle, "batch has", "batches have")} not ended` : "";
    say(this.told, error ? "" : `${many(jobs.length - idle, "job runs", "jobs run")} on the minions that answered${also}.${missed}`);
    replace(this.list, jobs.slice(0, MOST).map((job) => this.row(job)), jobs.length > MOST && el("li", {}, `${many(jobs.length - MOST, "more")}: salt-run job_cache.running`));
  }

  row(job) {
    const since = Number.isFinite(job.since) ? `, since ${ago(job.since, this.app.api.now())}` : "";
    const size = Array.isArray(job.minions) ? job.minions.length : 0;
    return el("li", {},
      el("a", { href: to(job.kind === "batch" ? "batches" : "jobs", job.jid) }, line(command(job), 100)),
      ` ${line(job.kind, 20)}, ${line(job.state, 20)} on ${many(size, "minion")}${since}, by ${line(job.user, 40)}`,
      el("br"), el("span", { class: "quiet" }, "To end it: "), el("span", { class: "jid" }, line(job.kill, 200)));
  }
}
