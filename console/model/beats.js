// The last sign of life of each engine. Pure: times are arguments.

/** Seconds without a sign of life after which an engine looks dead; it shows one every few seconds. As in the runners. */
const SILENT = 35;

export class Beats {
  #last = new Map();

  /** An engine shows a sign of life. */
  heard(engine, now) {
    this.#last.set(engine, now);
  }

  /** A runner has said for how many seconds an engine has shown no sign of life; no event can say that. */
  told(engine, seconds, now) {
    if (seconds > 0) this.#last.set(engine, now - seconds);
  }

  /** When an engine last showed a sign of life; undefined if that is not known. */
  last(engine) {
    return this.#last.get(engine);
  }

  /**
   * The seconds since an engine's last sign of life, if these are too many; otherwise 0, also if that is not known.
   * @param {number} now
   * @param {number} heard when anything last came: a dead connection tells nothing about an engine
   */
  silent(engine, now, heard) {
    const last = this.#last.get(engine);
    return last !== undefined && Math.min(now, heard) - last > SILENT ? now - last : 0;
  }

  /** All silent engines: `[[engine, seconds]]`. */
  allSilent(now, heard) {
    return [...this.#last.keys()].map((engine) => [engine, this.silent(engine, now, heard)]).filter(([, seconds]) => seconds);
  }
}
