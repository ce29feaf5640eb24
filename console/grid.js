// One square for each minion of a batch, on a canvas, which can draw ten thousand of them. Colour and mark both show the state;
// the table below says the same in words.

import { el, say } from "./dom.js";
import { STATES } from "./model/batches.js";
import { ago, many } from "./format.js";

/** Edge of a square in CSS pixels: `[most minions, edge]`. */
const EDGES = [[60, 24], [400, 18], [2000, 12], [12000, 8], [Infinity, 5]];

export class Grid {
  /**
   * @param {Members} members
   * @param {(place: number) => void} choose called when the user chooses the minion at a place
   * @param {() => number} now Unix time
   */
  constructor(members, choose, now) {
    Object.assign(this, { members, choose, now, cursor: -1, drawn: 0 });
    this.canvas = el("canvas", {
      class: "grid", tabindex: 0, role: "img", "aria-describedby": "grid-help",
      onkeydown: (event) => this.#key(event),
      onpointermove: (event) => this.#point(event),
      onclick: (event) => { this.#point(event); if (this.cursor >= 0) this.choose(this.cursor); },
      onfocus: () => { if (this.cursor < 0 && this.members.names.length) this.#moveTo(0); },
    });
    this.told = el("output", { class: "grid-told", "aria-live": "polite" });
    this.node = el("div", { class: "grid-frame" }, this.canvas, this.told,
      el("p", { id: "grid-help", class: "quiet" }, "One square for each minion. Arrow keys move, Enter shows the minion in the table below."));
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.again = () => this.draw(true);
    this.scheme.addEventListener("change", this.again);
    this.size = new ResizeObserver(() => this.draw(true));
    this.size.observe(this.node);
  }

  close() {
    this.scheme.removeEventListener("change", this.again);
    this.size.disconnect();
  }

  /** Draw what has changed, or everything. */
  draw(everything = false) {
    const { members } = this;
    const count = members.names.length;
    const changed = everything || !members.changed || count !== this.drawn ? null : members.changed;
    if (!changed) this.#lay(count);
    const context = this.canvas.getContext("2d");
    if (changed) for (const place of changed) this.#square(context, place);
    else for (let place = 0; place < count; place += 1) this.#square(context, place);
    members.changed = [];
    this.drawn = count;
    const told = STATES.filter((state) => members.counts[state]).map((state) => `${members.counts[state]} ${name(state)}`);
    this.canvas.setAttribute("aria-label", `${many(count, "minion")}: ${told.join(", ") || "none"}`);
    if (this.cursor >= count) this.cursor = -1;
    if (this.cursor >= 0) {
      this.#square(context, this.cursor, true);
      say(this.told, this.#words(this.cursor));
    }
  }

  #lay(count) {
    const width = Math.max(120, Math.floor(this.node.clientWidth));
    this.edge = EDGES.find(([most]) => count <= most)[1];
    this.columns = Math.max(1, Math.floor(width / this.edge));
    const height = Math.max(1, Math.ceil(count / this.columns)) * this.edge;
    const scale = Math.min(2, window.devicePixelRatio || 1);
    this.canvas.width = this.columns * this.edge * scale;
    this.canvas.height = height * scale;
    this.canvas.style.width = `${this.columns * this.edge}px`;
    this.canvas.style.height = `${height}px`;
    this.canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
    const style = getComputedStyle(document.documentElement);
    this.colours = STATES.map((state) => style.getPropertyValue(`--${state}`).trim() || "#888");
    this.paper = style.getPropertyValue("--paper").trim() || "#fff";
    this.ink = style.getPropertyValue("--ink").trim() || "#000";
  }

  #square(context, place, chosen = false) {
    const { edge, columns } = this;
    const [x, y, inner] = [(place % columns) * edge, Math.floor(place / columns) * edge, edge - 1];
    const state = STATES[this.members.states[place]];
    context.fillStyle = this.paper;
    context.fillRect(x, y, edge, edge);
    context.fillStyle = this.colours[this.members.states[place]];
    if (state === "pending" && edge > 5) {
      // An empty square: nothing has happened there yet.
      context.fillRect(x, y, inner, inner);
      context.fillStyle = this.paper;
      context.fillRect(x + 1, y + 1, inner - 2, inner - 2);
    } else if (state === "active") {
      context.fillRect(x, y, inner, inner);
      context.fillStyle = this.paper;
      context.fillRect(x + inner * 0.3, y + inner * 0.3, inner * 0.4, inner * 0.4);
    } else if (state === "offline" || state === "lost") {
      context.fillRect(x, y + inner * 0.3, inner, inner * 0.4);
    } else {
      context.fillRect(x, y, inner, inner);
      if (state !== "completed") this.#cross(context, x, y, inner);
    }
    if (chosen) {
      context.strokeStyle = this.ink;
      context.lineWidth = 2;
      context.strokeRect(x + 1, y + 1, inner - 2, inner - 2);
    }
  }

  #cross(context, x, y, inner) {
    context.strokeStyle = this.paper;
    context.lineWidth = Math.max(1, inner / 8);
    context.beginPath();
    context.moveTo(x + inner * 0.2, y + inner * 0.2);
    context.lineTo(x + inner * 0.8, y + inner * 0.8);
    context.moveTo(x + inner * 0.8, y + inner * 0.2);
    context.lineTo(x + inner * 0.2, y + inner * 0.8);
    context.stroke();
  }

  #words(place) {
    const { name: minion, state, retcode, since, group } = this.members.at(place);
    const code = retcode === null || retcode === undefined || retcode === 0 ? "" : `, exit code ${retcode}`;
    const when = Number.isFinite(since) ? `, ${ago(since, this.now())}` : "";
    return `${minion}: ${name(state)}${code}${when}${group === undefined ? "" : `, group ${group}`}`;
  }

  #moveTo(place) {
    const before = this.cursor;
    if (place === before || place < 0 || place >= this.members.names.length) return;
    this.cursor = place;
    const context = this.canvas.getContext("2d");
    if (before >= 0 && before < this.members.names.length) this.#square(context, before);
    this.#square(context, place, true);
    say(this.told, this.#words(place));
  }

  #key(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns };
    if (event.key in steps) this.#moveTo(this.cursor + steps[event.key]);
    else if (event.key === "Home") this.#moveTo(0);
    else if (event.key === "End") this.#moveTo(this.members.names.length - 1);
    else if (event.key === "Enter" && this.cursor >= 0) this.choose(this.cursor);
    else return;
    event.preventDefault();
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    const [column, row] = [event.clientX - box.left, event.clientY - box.top].map((far) => Math.floor(far / this.edge));
    if (column >= 0 && column < this.columns) this.#moveTo(row * this.columns + column);
  }
}

/** Return a state in words. */
export function name(state) {
  return String(state).replaceAll("_", " ");
}
