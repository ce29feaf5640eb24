// Reads JSON as Python writes it: with exact large numbers, unlike JavaScript's own parser, and with NaN. Pure.

/** Numbers that JavaScript's own parser would round. It also finds them within strings, which only costs a moment. */
const LONG = /[:[,]\s*-?\d{16}/;
/** Whole strings too, so that nothing within them is taken for a number. */
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|-?Infinity|NaN/g;

/**
 * Return the value of a text. A whole number that JavaScript cannot hold (a jid, a counter of 64 bits) becomes a string of its
 * digits: rounded, it would be another number. NaN and Infinity, which Python writes though JSON lacks them, become strings too.
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
