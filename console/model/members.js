// The minions of one batch, from `batch.minions` and from the events of its job. Built for tens of thousands. Pure.

import { STATES } from "./batches.js";

const INDEX = Object.fromEntries(STATES.map((state, index) => [state, index]));
const [PENDING, ACTIVE, COMPLETED, FAILED] = ["pending", "active", "completed", "failed"].map((state) => INDEX[state]);
/** States that a return may still change: it comes late, or tells what was in doubt. */
const OPEN = new Set([PENDING, ACTIVE, INDEX.lost, INDEX.offline]);

export class Members {
  constructor(jid) {
    this.jid = jid;
    this.names = [];
    this.states = new Uint8Array(0);
    this.places = new Map();
    this.records = {};
    this.counts = zeros();
    this.heard = null;
    /** Places whose state has changed since they were drawn; null for all. */
    this.changed = null;
  }

  begin() {
    this.heard = [];
  }

  /** Take what `batch.minions` has returned. */
  take(records) {
    const names = Object.keys(records);
    // Minions of a group stand together, in the order of the groups.
    const groups = [...new Set(names.map((name) => records[name].group))];
    if (groups.length > 1) names.sort((one, other) => groups.indexOf(records[one].group) - groups.indexOf(records[other].group));
    const before = this.names;
    this.names = before.length === names.length && before.every((name, at) => name === names[at]) ? before : names;
    this.records = records;
    this.places = this.names === before ? this.places : new Map(names.map((name, at) => [name, at]));
    this.states = Uint8Array.from(this.names, (name) => INDEX[records[name].state] ?? PENDING);
    this.counts = zeros();
    for (const state of this.states) this.counts[STATES[state]] += 1;
    this.changed = null;
    const heard = this.heard || [];
    this.heard = null;
    for (const event of heard) this.hear(event);
  }

  fail() {
    this.heard = null;
  }

  /** Take an event of the batch's job; returns whether it changed anything. */
  hear(event) {
    this.heard?.push(event);
    if (event.kind === "published") return event.minions.map((name) => this.#move(name, ACTIVE, [PENDING])).some(Boolean);
    if (event.kind === "began") return this.#move(event.minion, ACTIVE, [PENDING]);
    if (event.kind === "returned") return this.#move(event.minion, event.failed ? FAILED : COMPLETED, OPEN);
    return false;
  }

  #move(name, state, from) {
    const place = this.places.get(name);
    if (place === undefined || ![...from].includes(this.states[place])) return false;
    this.counts[STATES[this.states[place]]] -= 1;
    this.counts[STATES[state]] += 1;
    this.states[place] = state;
    this.changed?.push(place);
    return true;
  }

  stateAt(place) {
    return STATES[this.states[place]];
  }

  /** What is known of the minion at a place; `since` and `retcode` are those of the last read, where its state is that one. */
  at(place) {
    const name = this.names[place];
    const record = this.records[name];
    const state = this.stateAt(place);
    return { name, state, group: record.group, ...(record.state === state ? { since: record.since, retcode: record.retcode } : {}) };
  }

  /** Whether the counts of an event are those that are shown here. */
  agrees(data) {
    return STATES.every((state) => !Number.isSafeInteger(data[state]) || data[state] === this.counts[state]);
  }

  /** Names in `states` that contain `text`, at most so many: `{places, more}`. */
  find(text, states, most) {
    const wanted = text.toLowerCase();
    const places = [];
    let more = 0;
    for (let place = 0; place < this.names.length; place += 1) {
      if (states.size && !states.has(this.stateAt(place))) continue;
      if (wanted && !this.names[place].toLowerCase().includes(wanted)) continue;
      if (places.length < most) places.push(place);
      else more += 1;
    }
    return { places, more };
  }
}

function zeros() {
  return Object.fromEntries(STATES.map((state) => [state, 0]));
}
