// The pictures of a batch: its minions over time, how it goes on, and how long they run. The table of minions says the same in words.

import { el, keyed, replace, say, set, svg } from "./dom.js";
import { clock, count, duration, many, name, tempo } from "./format.js";
import { ending, since } from "./model/batches.js";
import { COLUMNS, LEVELS, curvesOf, heatOf, rowsOf, runsOf, slowestOf, spreadOf } from "./model/timeline.js";

const [WIDTH, HEIGHT] = [300, 90];

/** A picture with its words: `{node, show(words, ...shapes)}`. The shapes are in a box of WIDTH by HEIGHT. */
function picture(title) {
  const told = el("p", { class: "quiet" });
  const image = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "chart-image tall", preserveAspectRatio: "none" });
  return {
    node: el("figure", { class: "chart" }, el("figcaption", {}, title), image, told),
    show(words, ...shapes) {
      say(told, words);
      set(image, "aria-label", `${title}: ${words}`);
      replace(image, ...shapes);
    },
  };
}

export class Timeline {
  /** @param {(place: number) => void} choose called when the user chooses the minion at a place */
  constructor(members, choose) {
    Object.assign(this, { members, choose });
    this.rows = el("div", { class: "lanes", onpointermove: (event) => this.#point(event), onpointerleave: () => this.#point(null), onclick: (event) => event.target.place !== undefined && choose(event.target.place) });
    this.axis = el("div", { class: "axis", "aria-hidden": "true" });
    this.tip = el("output", { class: "tip" });
    this.head = el("h2", {}, "Timeline");
    [this.progress, this.flying, this.spread] = ["Progress", "In flight", "Run times"].map(picture);
    this.slowest = el("ol", { class: "slowest" });
    const slow = el("figure", { class: "chart" }, el("figcaption", {}, "Slowest minions"), this.slowest);
    this.node = el("section", { class: "timeline" }, this.head,
      el("div", { class: "plot" }, this.rows, this.axis, this.tip),
      el("div", { class: "charts" }, this.progress.node, this.flying.node, this.spread.node, slow));
    this.node.hidden = true;
  }

  /**
   * @param {object} batch the summary
   * @param {number} now Unix time
   * @param {number|null} left seconds that the batch will still take, if that is known
   * @param {number|null} rate minions a minute
   */
  draw(batch, now, left, rate) {
    const until = Number.isFinite(batch.finished) ? batch.finished : now;
    const runs = runsOf(this.members, until);
    this.node.hidden = !runs.length;
    if (this.node.hidden) return;
    const [begin, end] = [runs[0].from, runs.reduce((latest, run) => Math.max(latest, run.to), runs[0].from + 0.1)];
    Object.assign(this, { runs: new Map(runs.map((run) => [run.place, run])) });
    const rows = rowsOf(runs, batch.group === undefined ? batch.sizes ?? [] : []);
    say(this.head, rows ? "Timeline" : "When minions ended, by how long they ran");
    if (rows) this.#bars(rows, batch, begin, end);
    else this.#heat(heatOf(runs, begin, end), begin, end);
    replace(this.axis, [0, 1, 2, 3, 4].map((part) => el("span", {}, part ? duration(((end - begin) * part) / 4, true) : clock(begin))));
    this.#curves(batch, runs, begin, until, left, rate);
    this.#spread(runs);
  }

  #bars(rows, batch, begin, end) {
    const lanes = rows.reduce((sum, row) => sum + row.lanes, 0);
    const high = lanes > 100 ? 3 : lanes > 50 ? 5 : lanes > 20 ? 9 : 16;
    const share = (seconds) => `${((100 * seconds) / (end - begin)).toFixed(3)}%`;
    replace(this.rows, rows.map(({ label, lanes: size, bars }) => {
      const shapes = bars.map((run) => {
        const bad = run.bad ? 0 : Math.round(high * 0.15);
        const bar = svg("rect", { "data-state": run.state, x: share(run.from - begin), y: run.lane * high + bad, width: share(Math.max(run.to - run.from, (end - begin) / 400)), height: high - 2 * bad - 1 });
        bar.place = run.place;
        return bar;
      });
      const at = batch.sizes?.length > 1 && /^Stage \d+$/.test(label) ? batch.sizes[Number(label.slice(6)) - 1] : null;
      const named = batch.group === undefined ? label : `Group ${label}`;
      const told = `${label ? `${named}: ` : ""}${many(bars.length, "minion")}${at ? `, ${count(at)} at a time` : ""}`;
      return [el("p", { class: "quiet" }, told), svg("svg", { role: "img", "aria-label": `${told}, ${count(bars.filter((run) => run.bad).length)} without success`, width: "100%", height: size * high }, shapes)];
    }));
  }

  #heat({ cells, longest, most, givenUp }, begin, end) {
    const high = 14;
    const shapes = cells.map(({ x, y, count: size, bad }) => {
      const [from, to] = [y, y + 1].map((level) => duration((longest * level) / LEVELS, true));
      const words = `${many(size, "minion")} ran ${from} to ${to} and ended ${duration(((end - begin) * x) / COLUMNS, true)} after the start${bad ? `; ${count(bad)} without success` : ""}`;
      // The share without success is at the foot of the cell, in full colour, so that few of many are seen too.
      const share = bad && Math.max(2, Math.round(((high - 1) * bad) / size));
      return [["completed", 0, high - 1 - share], ["failed", high - 1 - share, share]].map(([state, down, tall]) => {
        const cell = svg("rect", { class: "heat", "data-state": state, x: `${(100 * x) / COLUMNS}%`, y: (LEVELS - 1 - y) * high + down, width: `${100 / COLUMNS}%`, height: tall });
        cell.style.opacity = String(state === "failed" ? 1 : 0.2 + 0.8 * Math.sqrt(size / most));
        cell.words = words;
        return tall > 0 && cell;
      });
    });
    replace(this.rows, el("p", { class: "quiet" }, `The stronger the colour, the more minions; red at the foot: the share without success. From below to the top: 0 to ${duration(longest, true)}.${givenUp ? ` ${many(givenUp, "minion")} without a return left out.` : ""}`),
      svg("svg", { role: "img", "aria-label": `When ${count(this.runs.size - givenUp)} minions ended, by how long they ran`, width: "100%", height: LEVELS * high }, shapes));
  }

  #curves(batch, runs, begin, now, left, rate) {
    const { ended, flying } = curvesOf(this.members, runs, begin, now);
    // Room for the level that is reached at the end of the batch: minions may all end at that moment.
    const until = Number.isFinite(batch.finished) ? now + Math.max(now - begin, 0.1) / 25 : now;
    const end = until + (left ?? 0);
    const x = (when) => (WIDTH * Math.min(1, Math.max(0, (when - begin) / (end - begin || 1)))).toFixed(1);
    const line = (points, of, most) => points.flatMap(([when, ...values], index) => {
      const y = (value) => (HEIGHT - ((HEIGHT - 2) * value) / most).toFixed(1);
      return [...(index ? [`${x(when)},${y(of(points[index - 1].slice(1)))}`] : []), `${x(when)},${y(of(values))}`];
    }).join(" ");
    const area = (points) => `${x(begin)},${HEIGHT} ${points} ${x(until)},${points.split(",").at(-1)} ${x(until)},${HEIGHT}`;
    const total = batch.total || 1;
    const [all, wrong] = [line(ended, ([size]) => size, total), line(ended, ([, bad]) => bad, total)];
    const last = ended.at(-1)[1];
    const words = [`${count(last)} of ${count(batch.total)} after ${duration(now - since(batch))}`, rate && `${tempo(rate)} a minute`, left !== null && `about ${duration(left)} left, until ${clock(now + left)}`];
    this.progress.show(words.filter(Boolean).join("; "),
      svg("polygon", { "data-state": "completed", points: area(all) }), svg("polygon", { "data-state": "failed", points: area(wrong) }),
      left !== null && svg("polyline", { class: "forecast", points: line([[now, last]], ([size]) => size, total) + ` ${WIDTH},2` }));
    const limit = batch.batch_size;
    const most = flying.reduce((one, [, size]) => Math.max(one, size), limit || 1);
    this.flying.show(`${count(flying.at(-1)[1])} now, at most ${count(limit)} at this stage`,
      svg("polygon", { "data-state": "active", points: area(line(flying, ([size]) => size, most)) }),
      limit && svg("polyline", { class: "limit", points: line([[begin, limit], [end, limit]], ([size]) => size, most) }));
  }

  #spread(runs) {
    const found = spreadOf(runs);
    if (found) {
      const wide = WIDTH / found.bars.length;
      const most = Math.max(...found.bars.map((bar) => bar.count));
      const high = (size) => (size ? Math.max(2, ((HEIGHT - 4) * size) / most) : 0);
      this.spread.show(`half within ${duration(found.median, true)}, nine of ten within ${duration(found.ninety, true)}, the longest ${duration(found.longest, true)}`,
        found.bars.map((bar, index) => [[bar.count, "completed"], [bar.bad, "failed"]].map(([size, state]) => size > 0
          && svg("rect", { "data-state": state, x: (index * wide).toFixed(1), y: (HEIGHT - high(size)).toFixed(1), width: (wide - 1).toFixed(1), height: high(size).toFixed(1) }))));
    } else this.spread.show("No minion has returned.");
    const slow = slowestOf(runs);
    this.longest = slow.length ? slow[0].to - slow[0].from || 1 : 1;
    keyed(this.slowest, slow, (run) => run.name, ({ name: minion, place }) => {
      const [took, bar] = [el("span", { class: "quiet" }), el("span", { class: "meter" })];
      return {
        node: el("li", {}, el("button", { type: "button", class: "plain link", onclick: () => this.choose(place) }, minion), took, bar),
        set: (run) => {
          say(took, `${run.ended ? "" : "for "}${duration(run.to - run.from, true)}`);
          set(bar, "data-state", run.state);
          bar.style.width = `${(100 * (run.to - run.from)) / this.longest}%`;
        },
      };
    });
  }

  /** Say what is below the pointer, beside it. */
  #point(event) {
    const run = this.runs?.get(event?.target.place);
    const words = event?.target.words ?? (run && `${run.name}: ${name(run.state)}, ${run.ended ? ending(run) : "for"} ${duration(run.to - run.from, true)}`);
    say(this.tip, words ?? "");
    if (!words) return;
    const box = this.node.querySelector(".plot").getBoundingClientRect();
    const right = event.clientX - box.left > box.width / 2;
    Object.assign(this.tip.style, { top: `${event.clientY - box.top + 14}px`, left: right ? "auto" : `${event.clientX - box.left}px`, right: right ? `${box.right - event.clientX}px` : "auto" });
  }
}
