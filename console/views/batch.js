// One batch: its progress, its minions, and the buttons that control it.

import { confirm, open } from "../dialog.js";
import { el, replace, say, set, to } from "../dom.js";
import { ago, count, duration, line, many, moment, name, target } from "../format.js";
import { Batches, STATES, UNSUCCESSFUL, approversOf, budget, called, command, counted, done, ending, isGivenUp, isHeld, isMended, isOver, isScheduled, isUnsent, mendedBy, optionsOf, pace, retriable, since, sinceWhat, stagesOf, word } from "../model/batches.js";
import { draftOf } from "../model/draft.js";
import { Members } from "../model/members.js";
import { Reader } from "../reader.js";
import { keepDraft } from "../session.js";
import { Timeline } from "../timeline.js";
import { remark } from "./batches.js";
import { Failures } from "./failures.js";
import { Output } from "./output.js";
import { Table, Trouble, action, badge, bar, cell, counts, facts } from "./parts.js";

export class BatchView {
  constructor(app, jid) {
    Object.assign(this, { app, jid, title: `Batch ${jid}` });
    this.batches = new Batches();
    this.members = new Members();
    this.trouble = new Trouble();
    this.noMinions = new Trouble();
    this.reader = new Reader(() => this.read());
    this.state = badge();
    this.progress = bar();
    this.done = el("p", { class: "large", "aria-live": "polite" });
    this.note = el("p", { class: "remark" });
    this.stages = el("ol", { class: "stages" });
    this.facts = el("dl", { class: "facts" });
    this.survivors = el("p", { class: "trouble" });
    this.timeline = new Timeline(this.members, (place) => this.choose(this.members.names[place]));
    this.output = new Output(app, jid, () => this.choose(null));
    this.chosen = null;
    this.chips = STATES.map((state) => ({ state, node: el("button", { type: "button", class: "chip", "data-state": state, "aria-pressed": "false", onclick: () => this.toggle(state) }) }));
    this.states = new Set();
    this.search = el("input", { type: "search", id: "minion-search", spellcheck: "false", autocapitalize: "none", oninput: () => app.draw() });
    this.table = new Table("Minions of the batch", ["Minion", "State", "Exit code", "Ran", "Group"], (item) => item.name, () => this.row());
    const button = (text, fun, run, kind) => action(app, text, fun, run, kind);
    this.buttons = {
      pause: button("Pause", "batch.pause", () => this.ask("pause", "is paused")),
      resume: button("Resume", "batch.resume", () => this.ask("resume", "goes on")),
      approve: button("Approve", "batch.approve", () => this.approve(), "primary"),
      stop: button("Stop…", "batch.stop", () => this.stop(false), "danger"),
      kill: button("Stop and kill…", "batch.stop", () => this.stop(true), "danger"),
      retry: button("Retry…", "batch.retry", () => this.retry()),
    };
    this.origin = cell("a");
    this.parent = el("p", {}, "A retry of ", this.origin.node);
    this.retried = el("p", {});
    this.failures = new Failures(app, "batch.failures", jid);
    this.like = el("a", {}, "Batches like this");
    this.alike = el("span", {}, " · ", this.like);
    this.copy = el("button", { type: "button", onclick: () => this.again() }, "Copy to a new batch");
    this.beside = el("div", { class: "beside" },
      el("div", {}, el("div", { class: "row filter" }, el("label", { for: "minion-search" }, "Find a minion"), this.search, this.chips.map((chip) => chip.node)), this.table.node),
      this.output.node);
    this.node = el("section", { class: "batch" },
      el("p", {}, el("a", { href: "#/batches" }, "← All batches"), " · ", el("a", { href: to("jobs", jid) }, "Returns of this job"), this.alike, " · ", el("span", { class: "jid" }, jid)),
      this.trouble.node,
      el("div", { class: "head" }, this.state.node, this.done),
      this.progress.node, this.note, this.stages, this.survivors, this.parent, this.retried,
      el("div", { class: "row actions" }, Object.values(this.buttons).map((one) => one.node), this.copy),
      this.timeline.node, this.failures.node,
      el("h2", {}, "Minions"), this.noMinions.node, this.beside,
      el("details", {}, el("summary", {}, "Details"), this.facts));
    this.offerNothing();
  }

  /** Offer nothing that needs the batch, which is not read yet. */
  offerNothing() {
    for (const one of Object.values(this.buttons)) one.set(false);
    for (const node of [this.copy, this.alike, this.parent, this.retried]) node.hidden = true;
  }

  /** What is known of the batch; undefined before the first read. */
  get batch() {
    return this.batches.rows.get(this.jid);
  }

  // -- reading --------------------------------------------------------------------------------------------------------

  load() {
    return this.reader.now();
  }

  async read() {
    this.members.begin();
    this.batches.begin();
    const [status, minions] = await Promise.all([
      this.app.read("batch.status", { jid: this.jid }), this.app.read("batch.minions", { jid: this.jid }),
    ]);
    this.trouble.show(status.error);
    this.noMinions.show(minions.error);
    if (status.value && typeof status.value === "object") {
      this.readAt = Date.now() / 1000;
      this.app.toldSilent(status.value.engine_silent_seconds);
      if (this.batches.take([{ ...status.value, jid: this.jid }], this.app.api.now())) this.reader.want();
    } else this.batches.fail();
    if (minions.value && typeof minions.value === "object") this.members.take(minions.value);
    else this.members.fail();
    this.app.draw();
    // Each return changes the counts. The reasons are read once there are any failures, and again at the end of the batch.
    const wrong = this.batch ? UNSUCCESSFUL.reduce((sum, state) => sum + (this.batch[state] || 0), 0) : 0;
    const mended = this.members.mended();
    await this.failures.want(wrong - mended.size, this.batch && isOver(this.batch), mended);
  }

  /** Open the form, filled from this batch. It shows what would run before anything runs. */
  again() {
    keepDraft(draftOf(this.batch));
    location.hash = "#/start";
  }

  hear(event) {
    if (event.jid !== this.jid) return false;
    if (event.kind !== "batch") this.members.hear(event, this.app.api.now());
    // The events of the job change single minions. If they do not add up to the batch's counts, the minions are read again.
    else if (this.batches.hear(event, this.app.api.now()) || (this.members.read && !this.members.agrees(event.data))) this.reader.want();
    return true;
  }

  // -- showing --------------------------------------------------------------------------------------------------------

  draw() {
    const { app } = this;
    const batch = this.batch && counted(this.batch, this.members);
    this.drawMinions();
    if (!batch) {
      say(this.done, this.trouble.node.hidden ? "Reading…" : "");
      return;
    }
    const now = app.api.now();
    this.title = `${called(batch)} on ${line(target(batch.tgt), 100)}`;
    this.state.set(line(word(batch), 20));
    this.progress.set(batch);
    say(this.done, counts(batch));
    say(this.note, this.remark(now));
    // Only a note that needs an operator has the colour of a warning.
    this.note.classList.toggle("remark", !mendedBy(batch) && Boolean(app.silent("batch_manager") || batch.halted_reason || batch.state === "paused" || word(batch) === "waiting"));
    this.drawStages(batch);
    this.drawTimeline(batch, now);
    const options = optionsOf(batch);
    facts(this.facts, [
      ["Runs", el("span", { class: "id" }, line(command(batch), 500))],
      ["Target", target(batch.tgt, batch.tgt_type)],
      ["User", line(batch.user)],
      ["At a time", count(batch.batch_size)],
      ["Failure budget used", budget(batch)],
      ["Options", options.length ? options.map(([one, value]) => `${name(one)}: ${one === "start_at" ? moment(value) : line(value, 80)}`).join("; ") : null],
      [sinceWhat(batch), `${moment(since(batch))} (${ago(since(batch), now)})`],
      ["Last progress", isOver(batch) ? null : ago(batch.last_progress, now)],
      ["Ended", isOver(batch) && Number.isFinite(batch.finished) ? `${moment(batch.finished)} (${ago(batch.finished, now)})` : null],
      ["Took", isOver(batch) && !isUnsent(batch) && Number.isFinite(batch.finished) ? duration(batch.finished - since(batch)) : null],
      ["Stopped by", batch.stopped_by],
      ["Publishes", Number.isFinite(batch.publishes) ? `${count(batch.publishes)}${batch.publish_failures ? `, ${count(batch.publish_failures)} failed` : ""}` : null],
      ["Driven by", batch.driver === "engine" ? batch.engine_master && `the master ${line(batch.engine_master)}` : `Salt itself (${line(batch.driver)})`],
    ]);
    say(this.survivors, batch.survivors?.length ? `The job could not be killed on ${batch.survivors.map((one) => line(one)).join(", ")}` : "");
    this.survivors.hidden = !batch.survivors?.length;
    if (batch.parent) set(this.origin.node, "href", to("batches", batch.parent));
    this.origin.set(line(batch.parent));
    this.parent.hidden = !batch.parent;
    const retries = batch.retries ?? [];
    const left = Object.entries(batch.unmended ?? {}).map(([state, minions]) => `${count(minions)} ${name(state)}`).join(", ");
    replace(this.retried, mendedBy(batch) ? "Mended by" : "Retried by", ...retries.flatMap((one) => [" ", el("a", { href: to("batches", one) }, line(one))]), left && `. Still without success: ${left}.`);
    this.retried.hidden = !retries.length;
    this.drawButtons();
  }

  remark(now) {
    const { batch } = this;
    const check = batch.check && !batch.paused_reason ? "A check is under way." : "";
    const approvers = approversOf(batch) && !isOver(batch) ? ` It may be given by ${line(approversOf(batch), 200)}, but not by the user who started the batch.` : "";
    return `${remark(batch, this.app.silent("batch_manager"), now)}${approvers && "."}${approvers}${check}`;
  }

  /** At most once a second: there may be thousands of events a second. */
  drawTimeline(batch, now) {
    const about = `${word(batch)} ${done(batch)} ${this.readAt}`; // a read knows the times better than the events do
    if (this.drawn === about && (isOver(batch) || now - this.drawnAt < 1)) return;
    if (now - this.drawnAt < 1) {
      this.later ??= setTimeout(() => { this.later = null; this.app.draw(); }, 1000);
      return;
    }
    Object.assign(this, { drawn: this.members.names.length ? about : null, drawnAt: now });
    const { rate, eta } = pace(batch, now);
    this.timeline.draw(batch, now, eta, rate);
  }

  drawStages(batch) {
    const stages = stagesOf(batch);
    this.stages.hidden = stages.length < 2;
    if (this.stages.hidden) return;
    const told = { completed: "done", active: "now", failed: "ended here", pending: "not reached" };
    replace(this.stages, stages.map(({ number, size, state }) => el("li", { "data-state": state, "aria-current": state === "active" ? "step" : null },
      `Stage ${number}${size ? ` (${line(size, 20)})` : ""}: ${told[state]}`)));
  }

  drawButtons() {
    const { batch, buttons } = this;
    const ours = batch.driver === "engine";
    const over = isOver(batch);
    const stopping = batch.state === "stopping";
    buttons.pause.set(ours && (batch.state === "running" || isScheduled(batch)));
    buttons.resume.set(ours && isHeld(batch));
    const own = approversOf(batch) && batch.user === this.app.api.session?.user; // who started it may not approve it then
    buttons.approve.set(ours && Number.isInteger(batch.approve) && !over && !own);
    buttons.stop.set(!over && !stopping);
    buttons.kill.set(!over && (!stopping || (batch.active > 0 && !batch.killing)));
    this.copy.hidden = !ours;
    this.alike.hidden = false;
    set(this.like, "href", `#/batches?${new URLSearchParams({ find: command(batch).slice(0, 200) })}`);
    buttons.retry.set(ours && Object.keys(retriable(batch)).length > 0);
  }

  drawMinions() {
    const { counts: found } = this.members;
    for (const { state, node } of this.chips) {
      say(node, `${count(found[state])} ${name(state)}`);
      node.hidden = !found[state] && !this.states.has(state);
      set(node, "aria-pressed", String(this.states.has(state)));
    }
    const { places, more } = this.members.find(this.search.value, this.states, 2000);
    const grouped = this.members.names.length > 0 && this.members.at(0).group !== undefined;
    this.table.table.classList.toggle("groupless", !grouped);
    const none = this.members.names.length ? "No minion matches." : this.members.read ? "The batch has no minion." : "";
    this.table.draw(places.map((place) => this.members.at(place)), none, more);
    const place = this.members.places.get(this.chosen);
    if (place !== undefined) this.output.show(this.members.at(place), false);
  }

  row() {
    const [minion, code, since, group, state, again] = [cell("button", { type: "button", class: "plain link" }), cell(), cell("time"), cell(), badge(), el("span")];
    minion.node.addEventListener("click", () => this.choose(minion.node.textContent));
    return {
      cells: [minion.node, el("span", {}, state.node, again), code.node, since.node, group.node],
      set: (item) => {
        minion.set(item.name);
        set(minion.node, "aria-expanded", String(item.name === this.chosen));
        state.set(item.state);
        state.node.classList.toggle("mended", isMended(item));
        const told = item.retry ? ` ${name(item.retry_state)} in the retry ` : "";
        if (again.textContent !== told + (item.retry ?? "")) replace(again, told, item.retry && el("a", { href: to("batches", item.retry) }, line(item.retry)));
        code.set(item.retcode === null || item.retcode === undefined ? "" : item.retcode);
        since.set(this.ran(item));
        group.set(item.group === undefined ? "" : line(item.group, 60));
      },
    };
  }

  /** How long a minion ran the job, or was waited for; while it runs, when it was last seen running too: if that is long ago, it may be stuck. */
  ran(minion) {
    const { state, since, started, seen } = minion;
    const now = this.app.api.now();
    if (state === "active") return Number.isFinite(since) ? `for ${duration(now - since)}${Number.isFinite(seen) ? `, last seen ${ago(seen, now)}` : ""}` : "";
    if (Number.isFinite(started) && since > started) {
      if (isGivenUp(minion)) return `${ending(minion)} ${duration(since - started, true)}, ${ago(since, now)}`;
      return `${duration(since - started, true)}, ended ${ago(since, now)}`;
    }
    return Number.isFinite(since) && state !== "pending" ? `${isGivenUp(minion) ? `${name(state)} ` : ""}${ago(since, now)}` : "";
  }

  toggle(state) {
    if (!this.states.delete(state)) this.states.add(state);
    this.app.draw();
  }

  /** Open the output of a minion beside the list; null for none. */
  choose(minion) {
    this.chosen = minion;
    this.beside.classList.toggle("open", minion !== null);
    const place = this.members.places.get(minion);
    if (place !== undefined) this.output.show(this.members.at(place));
    this.app.draw();
  }

  tick() {
    if (this.batch && !isOver(this.batch)) this.app.draw();
  }

  // -- acting ---------------------------------------------------------------------------------------------------------

  async ask(verb, done) {
    await this.app.act(`batch.${verb}`, { jid: this.jid }, () => `Batch ${this.jid} ${done}.`);
    await this.load();
  }

  async approve() {
    // With the number of the stage, so that a late approval does not count for the next one.
    const { approve: stage, pending, failed } = this.batch;
    const says = [`${failed ? `The job has failed on ${many(failed, "minion")}. ` : ""}${many(pending, "minion")} of this batch may be sent the job next.`];
    if (!(await confirm(`Approve stage ${stage}?`, says, "Approve"))) return;
    await this.app.act("batch.approve", { jid: this.jid, stage }, () => `Stage ${stage} is approved.`);
    await this.load();
  }

  async stop(kill) {
    const { batch } = this;
    const left = `${count(batch.pending)} of ${many(batch.total, "minion")} ${batch.pending === 1 ? "is" : "are"} still pending`;
    const says = [batch.pending ? `The job is sent to no more minions: ${left}.` : "The job was already sent to all minions that it is sent to."];
    const where = many(batch.active, "minion that runs it now", "minions that run it now");
    if (batch.active) says.push(kill ? `The job is ended, by force if necessary, on ${where}.` : `The job continues on ${where}.`);
    says.push("A stopped batch cannot be resumed; a retry starts a new one.");
    if (!(await confirm(kill ? `Stop batch ${this.jid} and kill its job?` : `Stop batch ${this.jid}?`, says, kill ? "Stop and kill" : "Stop"))) return;
    await this.app.act("batch.stop", { jid: this.jid, kill }, () => `Batch ${this.jid} is stopped${kill ? ", and its job is being killed" : ""}.`);
    await this.load();
  }

  async retry() {
    const { batch } = this;
    const told = { lost: ", which may have run it: see why below the timeline", pending: ", which it was not sent to" };
    const boxes = Object.entries(retriable(batch)).map(([state, minions]) => {
      const box = el("input", { type: "checkbox", value: state, checked: state === "failed" });
      return { box, node: el("label", { class: "choice" }, box, el("span", {}, `${many(minions, "minion")}: ${name(state)}${told[state] ?? ""}`)) };
    });
    const chosen = () => boxes.filter(({ box }) => box.checked).map(({ box }) => box.value);
    const start = el("button", { type: "button", class: "primary" }, "Start the new batch");
    const check = () => { start.disabled = !chosen().length; };
    check();
    const minions = el("fieldset", { onchange: check }, el("legend", {}, "Minions"), boxes.map(({ node }) => node));
    const which = await open(`Retry batch ${this.jid}?`, [
      el("p", {}, `A new batch runs this again, with the same options, on these minions:`),
      el("pre", {}, line(command(batch), 500)), minions,
    ], (close) => {
      start.addEventListener("click", () => close(chosen()));
      return [start, el("button", { type: "button", onclick: () => close() }, "Cancel")];
    });
    if (!which) return;
    const started = await this.app.act("batch.retry", { jid: this.jid, which }, (value) => `Batch ${value.jid} is started on ${many(value.total, "minion")}.`);
    if (started) location.hash = to("batches", started.jid);
  }

  close() {
    this.reader.close();
    clearTimeout(this.later);
  }
}
