// The retry queue, from `job_retry.list` and from events. Pure.

/** States of an entry, in the order in which they are shown: what needs somebody first. */
export const STATES = ["held", "dead", "pending", "claimed", "sent", "running", "expired", "cancelled"];
export const PURGEABLE = ["held", "expired", "cancelled", "dead"];
/** What is announced of an entry, and the state it is in then; `done` is gone. */
const AFTER = { queued: "pending", sent: "sent", held: "held", expired: "expired", cancelled: "cancelled", dead: "dead" };

export function keyOf(entry) {
  return `${entry.jid} ${entry.minion}`;
}

export class Queue {
  constructor() {
    this.rows = new Map();
    this.heard = null;
    this.read = false;
  }

  begin() {
    this.heard = [];
  }

  take(list) {
    this.rows = new Map(list.map((entry) => [keyOf(entry), { ...entry }]));
    const heard = this.heard || [];
    this.heard = null;
    this.read = true;
    for (const event of heard) this.hear(event);
  }

  fail() {
    this.heard = null;
  }

  /** Take an event of an entry. `fits(entry)`: whether the list that is shown would have it. */
  hear(event, fits = () => true) {
    this.heard?.push(event);
    const key = keyOf(event);
    if (event.what === "done") return this.rows.delete(key);
    if (!Object.hasOwn(AFTER, event.what)) return false;
    const state = AFTER[event.what];
    const { fun, attempts, reason } = event.data;
    const told = { minion: event.minion, jid: event.jid, fun, attempts, reason, state };
    const entry = { queued_at: null, expires_at: null, waits_for: null, opens_at: null, ...this.rows.get(key), ...told };
    if (fits(entry)) this.rows.set(key, entry);
    else this.rows.delete(key);
    return true;
  }

  counts() {
    const found = Object.fromEntries(STATES.map((state) => [state, 0]));
    for (const { state } of this.rows.values()) if (state in found) found[state] += 1;
    return found;
  }

  /** Entries in groups: `[{key, entries}]`, those first that need somebody; `by` is `minion` or `jid`. */
  grouped(by) {
    const groups = new Map();
    for (const entry of this.rows.values()) {
      const key = String(entry[by]);
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(entry);
    }
    const rank = (entry) => STATES.indexOf(entry.state);
    for (const entries of groups.values()) entries.sort((one, other) => rank(one) - rank(other) || order(keyOf(one), keyOf(other)));
    return [...groups].map(([key, entries]) => ({ key, entries }))
      .sort((one, other) => rank(one.entries[0]) - rank(other.entries[0]) || order(one.key, other.key));
  }
}

function order(one, other) {
  return one < other ? -1 : one > other ? 1 : 0;
}
