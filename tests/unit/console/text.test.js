import assert from "node:assert/strict";
import test from "node:test";

import { plain } from "../../../console/dom.js";
import { block, line, moment, published, typed } from "../../../console/format.js";
import { parse } from "../../../console/json.js";
import { Parser } from "../../../console/stream.js";

test("the event stream is taken apart wherever it is cut", () => {
  const event = (tag, data, end) => `tag: ${tag}${end}data: ${data}${end}${end}`;
  const text = [
    "retry: 400\n",
    event("a", '{"tag": "a", "data": {"n": 1}}', "\n"),
    event("b", '{"tag": "b", "data": {"n": 2}}', "\r\n"),
    event("a", "no json", "\n"),
    event("a", '{"tag": "a", "data": {"n": 3}}', "\n"),
  ].join("");
  for (let size = 1; size < text.length; size += 1) {
    const heard = [];
    const parser = new Parser((tag) => tag === "a", (_, data) => heard.push(data.n));
    for (let at = 0; at < text.length; at += size) parser.feed(text.slice(at, at + size));
    assert.deepEqual(heard, [1, 3]);
  }
});

test("a job was published when its jid says in UTC, which is shown in the zone of the browser", () => {
  for (const more of ["", "_4711"]) assert.equal(published(`20260516101112131415${more}`), moment(1778926272));
  for (const other of ["deploy-7", "20260516", "99999999999999999999"]) assert.equal(published(other), "–");
});

test("a typed value gets the type that it looks like", () => {
  const texts = ["5", "5.5", "true", "null", '["a", 1]', '"5"', "uptime -p", "20260516101112131415", "1234e5678", "1.10"];
  const meant = [5, 5.5, true, null, ["a", 1], "5", "uptime -p", "20260516101112131415", "1234e5678", "1.10"];
  assert.deepEqual(texts.map(typed), meant);
});

test("numbers that JavaScript would round stay as they are", () => {
  const text = '{"jid": 20260516101112131415, "small": [9007199254740991, 0.5], "text": "a: 20260516101112131415 \\" NaN", "nan": NaN}';
  const meant = { jid: "20260516101112131415", small: [9007199254740991, 0.5], text: 'a: 20260516101112131415 " NaN', nan: "NaN" };
  assert.deepEqual(parse(text), meant);
});

test("values read as JSON however deep or large they are", () => {
  const value = { a: [1, { b: "x\ny" }, [], {}], c: null };
  assert.equal(block(value, 1000), JSON.stringify(value, null, 2));
  assert.equal(line(value), '{ "a": [ 1, { "b": "x\\ny" }, [], {} ], "c": null }');
  let deep = "x";
  for (let level = 0; level < 100000; level += 1) deep = [deep];
  assert.ok(block(deep, 500).length > 500);
  assert.ok(block(Array.from({ length: 1000000 }, (_, number) => number), 500).length < 600);
});

test("invisible characters are shown as their escapes", () => {
  assert.equal(plain("web\u202e1\r\nx\ty\x07 \u00e9 \u{1f600}"), "web\\u202e1\r\nx\ty\\x07 \u00e9 \u{1f600}");
});
