// JSON as Python writes it: exact, where JavaScript's own reading is not, and with NaN. Pure.

/** What JavaScript's own reading would round; in a text it is found as well, which costs a moment. */
const LONG = /[:[,]\s*-?\d{16}/;
/** Texts as a whole, so that nothing within them is taken for a number. */
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|-?Infinity|NaN/g;

/**
 * Return the value of a text. A whole number that JavaScript cannot hold (a jid, a counter of 64 bits) is its digits, as text:
 * rounded, it would be another one. NaN and Infinity, which Python writes and JSON does not know, are text likewise.
 * @throws {SyntaxError}
 */
export function parse(text) {
  if (!LONG.test(text)) {
    try {
      return JSON.parse(text);
    } catch (error) {
      if (!/NaN|Infinity/.test(text)) throw error;
    }
  }
  return JSON.parse(text.replace(TOKEN, (token) => (isExact(token) ? token : `"${token}"`)));
}

function isExact(token) {
  if (token[0] === '"') return true;
  return /^-?\d+$/.test(token) ? Number.isSafeInteger(Number(token)) : /\d/.test(token);
}
