// Reads again because of events: soon after the first one, and seldom while there are many. It never reads by itself.

/** Seconds from the first event to the read, so that events that come together cause one read. */
const SOON = 0.3;

export class Reader {
  /**
   * @param {() => Promise} read reads and shows the result; must not throw
   * @param {number} gap shortest pause in seconds between two reads; it grows up to ten times as long while events go on
   */
  constructor(read, gap = 3) {
    Object.assign(this, { read, gap, pause: gap, ended: -Infinity, timer: null, running: null, again: false });
    this.shown = () => !document.hidden && this.waits && this.want();
    document.addEventListener("visibilitychange", this.shown);
  }

  /** Something has happened. */
  want() {
    if (this.closed || this.timer !== null) return;
    if (this.running) {
      this.again = true;
      return;
    }
    if (document.hidden) {
      this.waits = true;
      return;
    }
    this.waits = false;
    const passed = Math.max(0, Date.now() / 1000 - this.ended); // the clock may have been set back
    if (passed > 2 * this.pause) this.pause = this.gap;
    else if (this.caused) this.pause = Math.min(this.pause * 1.5, this.gap * 10);
    const seconds = Math.max(SOON, this.pause - passed);
    this.timer = setTimeout(() => {
      this.timer = null;
      this.now(true);
    }, seconds * 1000);
  }

  /** Read at once; if a read is under way, which may have begun too early, read once more after it. */
  async now(caused = false) {
    if (this.closed) return;
    if (this.running) {
      await this.running;
      if (this.running || this.closed) return;
    }
    clearTimeout(this.timer);
    this.timer = null;
    this.again = false;
    this.caused = caused; // by events, not by the user
    this.running = this.read();
    try {
      await this.running;
    } finally {
      this.running = null;
      this.ended = Date.now() / 1000;
    }
    if (this.again) this.want();
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.shown);
  }
}
