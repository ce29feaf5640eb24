// Search for jobs in the job cache.

import { el, say, to } from "../dom.js";
import { count, line, published } from "../format.js";
import { isQuestion } from "../model/events.js";
import { commandOf } from "../model/jobs.js";
import { Table, Trouble, cell, choice, field } from "./parts.js";
import { Running } from "./running.js";

const LIMIT = 50;

export class JobsView {
  /** @param {string} asked the search, as in the address behind `?` */
  constructor(app, _jid, asked = "") {
    this.app = app;
    this.title = "Jobs";
    /** The view follows the publishes of all jobs. */
    this.published = true;
    this.jobs = [];
    this.next = null;
    this.newer = 0;
    this.trouble = new Trouble();
    const text = (name, placeholder = "") => el("input", { name, placeholder, spellcheck: "false", autocapitalize: "none" });
    this.inputs = {
      fun: text("fun", "state.*"),
      tgt: text("tgt"),
      minion: text("minion"),
      user: text("user"),
      start_time: text("start_time", "-2h"),
      end_time: text("end_time"),
      outcome: choice([["", "any"], ["failed", "failed"], ["missing", "not returned"], ["returned", "returned"]]),
    };
    const { inputs } = this;
    this.noise = el("input", { type: "checkbox", name: "noise" });
    const given = new URLSearchParams(asked);
    app.searched = `#/jobs${asked ? `?${given}` : ""}`;
    for (const [name, input] of Object.entries(inputs)) input.value = given.get(name) ?? "";
    this.noise.checked = given.get("kind") === "all";
    this.noise.addEventListener("change", () => this.search());
    this.fresh = el("button", { type: "button", onclick: () => this.load() });
    this.fresh.hidden = true;
    this.older = el("button", { type: "button", onclick: () => this.more() }, "Show older ones");
    this.table = new Table("Jobs", ["Job", "Target", "User", "Published", "Returns"], (job) => String(job.JID), (job) => this.row(job), LIMIT);
    this.running = new Running(app);
    this.node = el("section", {}, this.running.node,
      el("form", { class: "search", onsubmit: (event) => { event.preventDefault(); this.search(); } },
        el("div", { class: "fields" },
          field("fun", "Function", inputs.fun), field("minion", "Minion", inputs.minion), field("tgt", "Target", inputs.tgt),
          field("search_user", "User", inputs.user), field("start_time", "Since", inputs.start_time, "-2h, -7d, or a date and time of the master."), field("end_time", "Until", inputs.end_time),
          field("outcome", "Outcome", inputs.outcome),
          field("noise", "Show questions and calls on the master too", this.noise)),
        el("button", { type: "submit", class: "primary" }, "Search")),
      this.trouble.node, this.fresh, this.table.node, this.older);
  }

  wanted() {
    const found = { limit: LIMIT };
    for (const [name, input] of Object.entries(this.inputs)) if (input.value.trim()) found[name] = input.value.trim();
    if (this.noise.checked) found.kind = "all";
    return found;
  }

  /** Search for what is typed. The search is in the address, so that it can be kept and shared. */
  search() {
    const { limit, ...wanted } = this.wanted();
    const asked = new URLSearchParams(wanted).toString();
    this.app.searched = `#/jobs${asked ? `?${asked}` : ""}`; // the page of a job links back to it
    history.replaceState(null, "", this.app.searched);
    return this.load();
  }

  async load() {
    this.newer = 0;
    await this.find(this.wanted(), []);
  }

  more() {
    return this.find({ ...this.asked, after: this.next }, this.jobs);
  }

  async find(wanted, before) {
    const turn = (this.turn = (this.turn || 0) + 1);
    this.reading = true;
    this.app.draw();
    const { value, error } = await this.app.read("job_cache.search", wanted);
    if (turn !== this.turn) return; // another search has begun meanwhile
    this.reading = false;
    this.trouble.show(error);
    if (value && Array.isArray(value.jobs)) {
      this.asked = wanted;
      this.jobs = [...before, ...value.jobs];
      this.next = value.next;
      this.readAt = Date.now() / 1000;
      this.table.most = Math.max(LIMIT, this.jobs.length);
    }
    this.app.draw();
  }

  hear(event) {
    if (event.kind !== "published" || (isQuestion(event.data) && !this.noise.checked && !this.asked?.fun)) return false;
    this.newer += 1;
    return true;
  }

  draw() {
    this.running.button.set();
    this.fresh.hidden = !this.newer;
    say(this.fresh, `${count(this.newer)} published since: search again`);
    this.older.hidden = !this.next || this.reading;
    this.table.draw(this.jobs, this.reading ? "Searching…" : this.readAt ? "No job matches." : "");
  }

  row(job) {
    const [returns, since] = [cell(), cell()];
    const jid = String(job.JID);
    const tgt = Array.isArray(job.Target) ? job.Target.join(",") : job.Target;
    return {
      cells: [
        [el("a", { href: to("jobs", jid) }, line(commandOf(job), 100)), el("br"), el("span", { class: "jid" }, jid)],
        el("span", { class: "id" }, line(tgt, 60)),
        line(job.User, 40),
        since.node,
        returns.node,
      ],
      set: (now) => {
        since.set(now.Unsent ? "not yet: its batch waits" : published(jid));
        returns.set([`${count(now.Returned)}${now.Minions ? ` of ${count(now.Minions)}` : ""}`, now.Failed && `${count(now.Failed)} failed`, now.Missing && `${count(now.Missing)} not returned`].filter(Boolean).join(", "));
      },
    };
  }

  close() {
    this.turn = -1;
  }
}
