// What is wrong with the page for users who cannot see it, or see it badly: names of controls, labels of fields, one heading
// of the first rank, and the contrast of every text with what is behind it (WCAG 2.1, 1.4.3: 4.5 to 1, 3 to 1 for large text).
const found = [], seen = node => node.checkVisibility({visibilityProperty: true});
const name = n => (n.getAttribute("aria-label") || n.labels?.[0]?.innerText || n.innerText || n.title || "").trim();
for (const n of document.querySelectorAll("button, a[href], input, select, textarea, canvas, [role=img], dialog")) {
    if (seen(n) && !name(n)) found.push("no name: " + n.outerHTML.slice(0, 120));
}
const ids = [...document.querySelectorAll("[id]")].map(n => n.id);
for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push("twice: #" + id);
for (const n of document.querySelectorAll("[aria-describedby], [aria-labelledby]")) {
    for (const id of (n.getAttribute("aria-describedby") || n.getAttribute("aria-labelledby")).split(" ")) {
        if (!document.getElementById(id)) found.push("describes nothing: " + id);
    }
}
if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
if (!document.querySelector("main") || !document.documentElement.lang || !document.title) found.push("no main, lang or title");
const parse = text => { const c = text.match(/[\d.]+/g).map(Number); return c.length === 4 && c[3] === 0 ? null : c.slice(0, 3); };
const light = c => { const [r, g, b] = c.map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
const behind = n => { for (; n; n = n.parentElement) { const c = parse(getComputedStyle(n).backgroundColor); if (c) return c; } return parse(getComputedStyle(document.documentElement).getPropertyValue("--paper")) || [255, 255, 255]; };
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const told = new Set();
while (walker.nextNode()) {
    const n = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !seen(n) || n.closest(".unseen, [aria-hidden]")) continue;
    const style = getComputedStyle(n), [one, other] = [light(parse(style.color) || [0, 0, 0]), light(behind(n))].sort((a, b) => b - a);
    const ratio = (one + .05) / (other + .05), large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    const line = `contrast ${ratio.toFixed(1)}: ${n.tagName}.${n.className}: ${walker.currentNode.data.trim().slice(0, 30)}`;
    if (ratio < (large ? 3 : 4.5) && !told.has(n.tagName + n.className)) { told.add(n.tagName + n.className); found.push(line); }
}
return found;
