import assert from "node:assert/strict";
import test from "node:test";

import { Followed } from "../../../../console/model/followed.js";

class Told extends Followed {
  seen = [];

  put(found, now) {
    this.seen.push(["put", found, now]);
  }

  follow(event, now) {
    this.seen.push(["follow", event, now]);
    return event === "again";
  }
}

test("events that come during a read are applied again after it, with the time at which they came", () => {
  const told = new Told();
  told.begin();
  told.hear("a", 1);
  assert.equal(told.take("all", 2), false);
  assert.deepEqual(told.seen, [["follow", "a", 1], ["put", "all", 2], ["follow", "a", 1]]);
  assert.equal(told.read, true);
});

test("it is read once more if an event during the read asks for that", () => {
  const told = new Told();
  told.begin();
  assert.equal(told.hear("again", 1), true);
  assert.equal(told.take("all", 2), true);
  assert.equal(told.take("all", 3), false);
});

test("a failed read keeps nothing for the next", () => {
  const told = new Told();
  told.begin();
  told.hear("again", 1);
  told.fail();
  assert.equal(told.read, false);
  assert.equal(told.take("all", 2), false);
});
