// All batches: those under way, and those that have ended.

import { el, say, set, to } from "../dom.js";
import { ago, count, duration, line, moment, target, tempo } from "../format.js";
import { Batches, WORDS, called, isLike, isOver, isUnsent, mendedBy, pace, since, sinceWhat, whyHalted, word } from "../model/batches.js";
import { Reader } from "../reader.js";
import { Table, Trouble, badge, bar, cell, counts } from "./parts.js";

const FIRST = 50;

export class BatchesView {
  /** @param {string} asked what is looked for, as in the address behind `?` */
  constructor(app, _jid, asked = "") {
    this.app = app;
    this.title = "Batches";
    this.limit = FIRST;
    this.batches = new Batches();
    this.trouble = new Trouble();
    this.reader = new Reader(() => this.read());
    this.table = new Table("Batches", ["State", "Job", "Target", "Progress", "Pace", "Started"], (batch) => batch.jid, (batch) => this.row(batch), FIRST);
    this.older = el("button", { type: "button", onclick: () => { this.limit *= 4; this.load(); } }, "Show older ones");
    this.words = new Set();
    this.mayNot = el("span", { class: "note" });
    this.search = el("input", { type: "search", id: "batch-search", spellcheck: "false", autocapitalize: "none", oninput: () => this.find() });
    this.chips = WORDS.map((one) => ({ one, node: el("button", { type: "button", class: "chip", "data-state": one, "aria-pressed": "false", onclick: () => this.toggle(one) }) }));
    const given = new URLSearchParams(asked);
    this.search.value = given.get("find") ?? "";
    for (const one of given.getAll("state")) if (WORDS.includes(one)) this.words.add(one);
    this.node = el("section", {},
      el("p", {}, el("a", { href: "#/start", class: "button primary" }, "Start a batch", this.mayNot)),
      el("div", { class: "row filter" }, el("label", { for: "batch-search" }, "Find a batch"), this.search, this.chips.map((chip) => chip.node)),
      this.trouble.node, this.table.node, this.older);
    this.table.table.classList.add("batches");
  }

  load() {
    return this.reader.now();
  }

  async read() {
    this.batches.begin();
    const { value, error } = await this.app.read("batch.list", { limit: this.limit });
    this.trouble.show(error);
    if (error || !Array.isArray(value)) this.batches.fail();
    else {
      if (this.batches.take(value, this.app.api.now())) this.reader.want();
      this.app.toldSilent(Math.max(0, ...value.map((batch) => Number(batch.engine_silent_seconds) || 0)));
      this.readAt = Date.now() / 1000;
      this.full = value.length >= this.limit;
    }
    this.app.draw();
  }

  hear(event) {
    if (event.kind !== "batch") return false;
    if (this.batches.hear(event, this.app.api.now())) this.reader.want();
    return true;
  }

  draw() {
    const all = this.batches.sorted();
    say(this.mayNot, this.app.mayNot("batch.start") ? " (not permitted)" : "");
    for (const { one, node } of this.chips) {
      const many = all.filter((batch) => word(batch) === one).length;
      say(node, `${count(many)} ${one}`);
      node.hidden = !many && !this.words.has(one);
      set(node, "aria-pressed", String(this.words.has(one)));
    }
    const rows = all.filter((batch) => (!this.words.size || this.words.has(word(batch))) && isLike(batch, this.search.value));
    this.table.most = Math.max(this.table.most, this.limit);
    this.table.draw(rows, all.length ? "No batch matches." : this.batches.read ? "There is no batch." : this.trouble.node.hidden ? "Reading…" : "");
    this.older.hidden = !this.full;
  }

  toggle(one) {
    if (!this.words.delete(one)) this.words.add(one);
    this.find();
  }

  /** Show what is looked for. It is in the address, so that it can be kept and shared. */
  find() {
    const text = this.search.value.trim();
    const asked = new URLSearchParams([...(text ? [["find", text]] : []), ...[...this.words].map((one) => ["state", one])]).toString();
    history.replaceState(null, "", `#/batches${asked ? `?${asked}` : ""}`);
    this.app.draw();
  }

  tick() {
    this.app.draw();
  }

  row(batch) {
    const { app } = this;
    const [state, progress, done, speed, note] = [badge(), bar(), cell(), cell(), cell("span", { class: "quiet" })];
    const [started, took] = [cell("time"), cell("span", { class: "quiet" })];
    const [fun, tgt, user] = [cell("a", { href: to("batches", batch.jid) }), cell("span", { class: "id" }), cell("span", { class: "quiet" })];
    let known = null;
    return {
      cells: [
        state.node,
        [fun.node, el("br"), el("span", { class: "jid" }, batch.jid)],
        [tgt.node, el("br"), user.node],
        [progress.node, done.node, " ", note.node],
        speed.node,
        [started.node, el("br"), took.node],
      ],
      set(now) {
        if (now !== known) {
          // Data from an event may be forged, so data that is read replaces it.
          known = now;
          fun.set(line(called(now), 80));
          tgt.set(target(line(Array.isArray(now.tgt) ? now.tgt.join(",") : now.tgt, 60), now.tgt_type));
          user.set(`by ${line(now.user, 40)}`);
        }
        state.set(line(word(now), 20));
        progress.set(now);
        done.set(counts(now));
        const mended = mendedBy(now);
        const again = now.retries?.length && `${mended ? "mended" : "retried"} by ${line(now.retries.join(", "), 80)}`;
        note.set([!mended && remark(now, app.silent("batch_manager"), app.api.now()), again].filter(Boolean).join(", "));
        const { rate, eta } = pace(now, app.api.now());
        speed.set([rate >= 0.05 && `${tempo(rate)} a minute`, eta !== null && `${duration(eta)} left`].filter(Boolean).join(", "));
        started.set(`${sinceWhat(now) === "Started" ? "" : "asked for "}${ago(since(now), app.api.now())}`);
        took.set(isOver(now) && !isUnsent(now) && now.finished >= since(now) ? `took ${duration(now.finished - since(now))}` : "");
      },
    };
  }

  close() {
    this.reader.close();
  }
}

/**
 * Return the remark about a batch.
 * @param {number} silent seconds for which its engine has not answered; 0 if it has
 * @param {number} now Unix time
 */
export function remark(batch, silent, now) {
  if (silent > 0 && batch.driver === "engine" && !isOver(batch)) return `the engine has not answered for ${duration(silent)}`;
  if (batch.halted_reason) return `halted: ${line(whyHalted(batch), 120)}`;
  if (batch.state === "paused" && batch.paused_reason) return `${line(batch.paused_reason, 120)}${opens(batch, now)}`;
  const parts = [];
  if (batch.blocked_reason && !isOver(batch)) parts.push(line(batch.blocked_reason, 200));
  if (Number.isFinite(batch.stages) && batch.stages > 1 && !isOver(batch)) parts.push(`stage ${batch.stage} of ${batch.stages}`);
  if (batch.group !== undefined) parts.push(`group ${line(batch.group, 40)}`);
  if (batch.engine === false && !isOver(batch)) parts.push("no engine runs");
  return parts.join(", ");
}

/** When a batch goes on that waits for its start or its window. */
function opens({ opens_at: at, paused_by: by }, now) {
  return Number.isFinite(at) ? `; ${by === "start" ? "begins" : "opens"} ${ago(at, now)} (${moment(at)})` : "";
}
