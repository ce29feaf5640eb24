// Makes what is on the page. Whatever comes from the API gets there as text or as the value of a harmless attribute, never as
// markup: nothing in this page sets innerHTML, and the page's policy (require-trusted-types-for) makes that an error.

// Attributes that a caller may set; of those that load or run something there is href alone, for links within the page.
const ATTRIBUTES = new Set([
  "aria-controls", "aria-current", "aria-describedby", "aria-disabled", "aria-expanded", "aria-hidden", "aria-label",
  "aria-labelledby", "aria-live", "aria-pressed", "aria-valuemax", "aria-valuemin", "aria-valuenow", "aria-valuetext",
  "autocomplete", "autocapitalize", "spellcheck", "class", "colspan", "for", "id", "list", "max", "min", "name", "open", "placeholder",
  "required", "role", "rows", "scope", "size", "step", "tabindex", "title", "type", "value", "datetime", "inputmode",
  "autofocus", "d", "viewBox", "preserveAspectRatio", "points", "x", "y", "width", "height", "data-state", "data-of", "selected", "checked",
]);
const SVG = "http://www.w3.org/2000/svg";

/**
 * Return a new element.
 * @param {string} tag
 * @param {object} props attributes; `href` for a link within the page or below the server, and `on<event>` functions.
 *   An attribute that is null, undefined or false is left out.
 * @param {...(Node|string|number|null|Array)} children text is text, whatever it looks like
 */
export function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Return the address of one batch or job in this page, whatever its jid is. */
export function to(view, jid) {
  return `#/${view}/${encodeURIComponent(String(jid).replace(/\p{Cs}/gu, "\ufffd"))}`;
}

/** Return a new element of an image. */
export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else set(node, name, value);
  }
  node.append(...flat(children));
  return node;
}

/** Set an attribute, or take it away where the value is null, undefined or false. */
export function set(node, name, value) {
  if (name === "href") {
    if (!/^(#|\/(?!\/))/.test(value)) throw new Error(`no link within the page: ${value}`);
  } else if (!ATTRIBUTES.has(name)) throw new Error(`no attribute of this page: ${name}`);
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : String(value));
}

function flat(children) {
  return children.flat(3).filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : plain(child)));
}

/** What nobody sees, and what turns the direction of writing; ends of lines and tabs stay. */
const UNSEEN = /(?!\r?\n|\t)[\p{C}\p{Zl}\p{Zp}]/gu;

/** Return text in which each character can be seen, such as `\u202e`: with others an id could look like another. */
export function plain(text) {
  return String(text).replace(UNSEEN, (one) => {
    const code = one.codePointAt(0);
    const [mark, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
    return `\\${mark}${code.toString(16).padStart(digits, "0")}`;
  });
}

/** Put these children in the place of those that a node has. */
export function replace(node, ...children) {
  node.replaceChildren(...flat(children));
}

/** Set a node's text, if it is another one: a screen reader says a text again that is set again. */
export function say(node, text) {
  const wanted = text === null || text === undefined ? "" : plain(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/**
 * Have a parent show these items, one node each, in this order. The node of an item stays while the item does, and so does
 * the keyboard's focus in it.
 * @param {Node} parent
 * @param {Array} items
 * @param {(item) => string} keyOf
 * @param {(item) => {node: Node, set: (item) => void}} make
 */
export function keyed(parent, items, keyOf, make) {
  const known = parent.keyedNodes || (parent.keyedNodes = new Map());
  const wanted = new Set(items.map(keyOf));
  // First those that go: a node that is moved loses the focus.
  for (const [key, row] of known) {
    if (!wanted.has(key)) {
      row.node.remove();
      known.delete(key);
    }
  }
  const placed = new Set();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (placed.has(key)) continue;
    placed.add(key);
    let row = known.get(key);
    if (!row) known.set(key, (row = make(item)));
    row.set(item);
    // One that goes further down is moved in its turn, and those behind it stay where they are.
    if (place && row.node === place.nextSibling) place = row.node;
    if (row.node === place) place = place.nextSibling;
    else parent.insertBefore(row.node, place);
  }
}
