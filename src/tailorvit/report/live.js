// Follows a run: asks for the state, fetches the page when it has changed and replaces its main part, keeping what the
// reader has opened, chosen and scrolled to. Words reach the page as parsed HTML of our own or as textContent only.
(function () {
"use strict";
var version = document.querySelector('meta[name="tailorvit-version"]').content, busy = false, note = null;
function say(words) {
  if (!note) {
    note = document.createElement("p");
    note.className = "live-note";
    note.setAttribute("role", "status");
    note.style.cssText = "position:fixed;right:0;bottom:0;margin:0;padding:.3rem .7rem;font-size:.8rem;" +
      "background:var(--box,#eee);color:var(--soft,#444);border-top-left-radius:.4rem;z-index:9";
    document.body.appendChild(note);
  }
  note.textContent = words;
}
function key(node) {
  var part = node.closest("section, figure"), head = node.querySelector("summary");
  return (part ? part.id : "") + "|" + (head ? head.textContent.replace(/[0-9.,]+/g, "#") : "");
}
function named(c) {
  var part = c.closest("figure, section, main");
  var place = Array.prototype.indexOf.call(part.querySelectorAll("select, input"), c);
  return part.id + "|" + (c.name || c.id || place);
}
function touched(c) {  // what the reader left alone follows the page: the last generation moves on
  if (c.tagName !== "SELECT") { return c.value !== c.defaultValue || c.checked !== c.defaultChecked; }
  var first = Array.prototype.findIndex.call(c.options, function (o) { return o.defaultSelected; });
  return c.selectedIndex !== Math.max(first, 0);
}
function forAll(selector, work) { Array.prototype.forEach.call(document.querySelectorAll(selector), work); }
function swap(text) {
  var fresh = new DOMParser().parseFromString(text, "text/html");
  var old = document.querySelector("main"), main = fresh.querySelector("main");
  if (!old || !main) { location.reload(); return; }
  var open = {}, chosen = {}, anchor = null, top = 0, y = window.scrollY;
  forAll("main details", function (d) { open[key(d)] = d.open; });
  forAll("main select, main input", function (c) { if (touched(c)) { chosen[named(c)] = [c.value, c.checked]; } });
  forAll("main [id]", function (e) {
    var box = e.getBoundingClientRect();
    if (!anchor && box.height > 0 && box.bottom > 0) { anchor = e.id; top = box.top; }
  });
  ["header", "nav"].forEach(function (name) {
    var a = document.querySelector("body > " + name), b = fresh.querySelector("body > " + name);
    if (a) { a.remove(); }
    if (b) { old.before(document.adoptNode(b)); }
  });
  old.replaceWith(document.adoptNode(main));
  document.title = fresh.title;
  forAll("main details", function (d) { if (key(d) in open) { d.open = open[key(d)]; } });
  document.dispatchEvent(new Event("tailorvit:content"));
  forAll("main select, main input", function (c) {
    var had = chosen[named(c)];
    var there = function (o) { return o.value === had[0]; };
    if (had && c.options && !Array.prototype.some.call(c.options, there)) { had = null; }  // that choice is gone
    if (had && (c.value !== had[0] || c.checked !== had[1])) {
      c.value = had[0];
      c.checked = had[1];
      c.dispatchEvent(new Event("input", { bubbles: true }));
      c.dispatchEvent(new Event("change", { bubbles: true }));
    }
  });
  var place = anchor && y > 0 ? document.getElementById(anchor) : null;
  if (place) { window.scrollBy(0, place.getBoundingClientRect().top - top); } else { window.scrollTo(0, y); }
  version = fresh.querySelector('meta[name="tailorvit-version"]').content;
}
function reading() { var s = window.getSelection(); return s && !s.isCollapsed; }
function update() {
  if (busy || document.hidden) { return; }
  busy = true;
  fetch("/state", { cache: "no-store" }).then(function (r) { return r.json(); }).then(function (state) {
    say([state.status, state.epoch].filter(Boolean).join(" · "));
    if (state.version === version || reading()) { return null; }
    return fetch("/", { cache: "no-store" }).then(function (r) { return r.text(); }).then(swap);
  }).catch(function () { say("The watcher has ended; this is the last it showed."); })
    .then(function () { busy = false; });
}
setInterval(update, 2000);
document.addEventListener("visibilitychange", update);
update();
}());
