// Says when something is read again because of events: soon after the first, and seldom while there are many. Never by itself.

/** Seconds after the first event, so that those that come together are one read. */
const SOON = 0.3;

export class Reader {
  /**
   * @param {() => Promise} read reads, and shows what it has read; must not throw
   * @param {number} gap seconds between two reads at least; it grows to ten times as long while events go on
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
    const passed = Math.max(0, Date.now() / 1000 - this.ended); // a clock may be set back
    if (passed > 2 * this.pause) this.pause = this.gap;
    else if (this.caused) this.pause = Math.min(this.pause * 1.5, this.gap * 10);
    const seconds = Math.max(SOON, this.pause - passed);
    this.timer = setTimeout(() => {
      this.timer = null;
      this.now(true);
    }, seconds * 1000);
  }

  /** Read at once, or once more where a read is under way, which may have been too early. */
  async now(caused = false) {
    if (this.closed) return;
    if (this.running) {
      await this.running;
      if (this.running || this.closed) return;
    }
    clearTimeout(this.timer);
    this.timer = null;
    this.again = false;
    this.caused = caused; // by events, and by nobody at the page
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
