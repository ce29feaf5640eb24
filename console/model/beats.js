// When each engine has last shown a sign of life. Pure: times are handed in.

/** Seconds without a sign after which an engine does not look alive; it shows one every few. The runners go by the same. */
const SILENT = 35;

export class Beats {
  #last = new Map();

  /** An engine shows a sign of life. */
  heard(engine, now) {
    this.#last.set(engine, now);
  }

  /** A runner says for how many seconds an engine has shown none: it can see what no event tells. */
  told(engine, seconds, now) {
    if (seconds > 0) this.#last.set(engine, now - seconds);
  }

  /** When it has last shown one; undefined where that is not known. */
  last(engine) {
    return this.#last.get(engine);
  }

  /**
   * For how many seconds an engine has shown none, where that is too long; 0 where it has, or nobody can tell.
   * @param {number} now
   * @param {number} heard when anything has last come: a connection that is dead tells nothing of an engine
   */
  silent(engine, now, heard) {
    const last = this.#last.get(engine);
    return last !== undefined && Math.min(now, heard) - last > SILENT ? now - last : 0;
  }

  /** All that are silent: `[[engine, seconds]]`. */
  allSilent(now, heard) {
    return [...this.#last.keys()].map((engine) => [engine, this.silent(engine, now, heard)]).filter(([, seconds]) => seconds);
  }
}
