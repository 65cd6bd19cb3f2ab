// What pages do in the browser: refresh, keyboard shortcuts, the palette, charts. Every page works without it.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const root = document.documentElement;

// Refresh: parts with data-live are fetched again while the page is visible, and updated in place.

const indicator = $("#live");
let paused = false, failed = 0, timer = 0, fetching = false;

const busy = (part) => {
  const active = document.activeElement, selection = getSelection();
  return (active && part.contains(active) && active.matches("input, select, textarea") && active.type !== "checkbox")
    || $("dialog[open]", part) !== null
    || (selection && !selection.isCollapsed && part.contains(selection.anchorNode));
};

const keyOf = (node) => node.nodeType === 1 ? node.id || node.dataset.key || "" : "";

// Makes `old` equal to `fresh` and leaves equal nodes in place: focus, open details and the selected row stay.
const morph = (old, fresh) => {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(name === "open" && old.matches("details, dialog"))) old.removeAttribute(name);
  }
  const cursor = old.classList.contains("cursor");
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value && !(name === "open" && old.matches("details"))) old.setAttribute(name, value);
  }
  if (cursor) old.classList.add("cursor");
  const known = new Map([...old.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
  let place = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const key = keyOf(next);
    let match = key ? known.get(key) : place;
    if (match && (match.nodeType !== next.nodeType || match.nodeName !== next.nodeName || keyOf(match) !== key)) match = null;
    if (!match) {
      old.insertBefore(document.importNode(next, true), place);
      continue;
    }
    if (match === place) place = place.nextSibling;
    else old.insertBefore(match, place);
    if (match.nodeType === 1) {
      if (!match.isEqualNode(next)) morph(match, next);
    } else if (match.data !== next.data) match.data = next.data;
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
};

const show = (state, text) => {
  if (!indicator) return;
  indicator.dataset.state = state;
  indicator.textContent = text;
};

const refresh = async () => {
  const parts = $$("[data-live]").filter((part) => !busy(part));
  if (!parts.length || fetching) return;
  fetching = true;
  const url = new URL(location.href);
  url.hash = "";
  url.searchParams.set("part", parts.map((part) => part.dataset.live).join(","));
  try {
    const answer = await fetch(url, { signal: AbortSignal.timeout(15000) });
    if (answer.redirected && new URL(answer.url).pathname === "/login") return location.reload();
    if (answer.status === 404) {  // the message was deleted meanwhile, for example
      stop();
      return show("lost", "not found");
    }
    if (!answer.ok) throw new Error(answer.status);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of parts) {
      const next = $(`[data-live="${part.dataset.live}"]`, fresh);
      if (next && !busy(part)) morph(part, next);
    }
    const done = $("[data-live][data-final]");
    failed = 0;
    show(done ? "paused" : "on", done ? "updates off" : "live");
    if (done) stop();
  } catch {
    failed += 1;
    show("lost", "no answer; retrying");
  } finally {
    fetching = false;
  }
};

const pace = () => 1000 * Math.min(...$$("[data-live]").map((part) => Number(part.dataset.every) || 3)) * Math.min(1 + failed, 8);
const stop = () => { clearTimeout(timer); timer = 0; };
const start = () => {
  stop();
  if ($("[data-live][data-final]")) return show("paused", "updates off");
  if (paused || document.hidden || !$("[data-live]")) return;
  timer = setTimeout(async () => { await refresh(); if (timer) start(); }, pace());
};
const toggle = () => {
  paused = !paused;
  show(paused ? "paused" : "on", paused ? "paused" : "live");
  if (paused) stop(); else refresh().then(start);
};
if (indicator) {
  if (!$("[data-live]")) indicator.hidden = true;
  else {
    indicator.addEventListener("click", toggle);
    show("on", "live");
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) { stop(); show("paused", "paused"); }
      else if (!paused) { show("on", "live"); refresh().then(start); }
    });
    start();
  }
}

// Light and dark theme.

const theme = () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("semel-theme", root.dataset.theme);
};

// Palette: every page and queue by a part of its name.

const palette = $("#palette");
let targets = null;
const search = (text) => {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (targets || []).filter(({ name }) => words.every((word) => name.toLowerCase().includes(word))).slice(0, 60);
  const list = $("ul", palette);
  list.replaceChildren(...matches.map((target, index) => {
    const item = document.createElement("li");
    item.id = `result-${index}`;
    item.setAttribute("role", "option");
    item.setAttribute("aria-selected", String(index === 0));
    item.dataset.href = target.href;
    item.append(target.name);
    const kind = document.createElement("span");
    kind.className = "kind";
    kind.textContent = target.kind;
    item.append(kind);
    return item;
  }));
  $("input", palette).setAttribute("aria-activedescendant", matches.length ? "result-0" : "");
};
const jump = async () => {
  palette.showModal();
  $("input", palette).value = "";
  if (!targets) {
    targets = $$(".side nav a").map((link) => ({ name: link.dataset.name, href: link.href, kind: "page" }));
    search("");
    try {
      targets = targets.concat(await (await fetch("/queues.json")).json());
    } catch { /* then only the pages are listed */ }
  }
  search($("input", palette).value);
};
if (palette) {
  const input = $("input", palette);
  input.addEventListener("input", () => search(input.value));
  input.addEventListener("keydown", (event) => {
    const items = $$("li", palette), here = items.findIndex((item) => item.getAttribute("aria-selected") === "true");
    if (event.key === "Enter" && items[here]) { event.preventDefault(); location.assign(items[here].dataset.href); }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !items.length) return;
    event.preventDefault();
    const next = items[(here + step + items.length) % items.length];
    items[here]?.setAttribute("aria-selected", "false");
    next.setAttribute("aria-selected", "true");
    input.setAttribute("aria-activedescendant", next.id);
    next.scrollIntoView({ block: "nearest" });
  });
  $("ul", palette).addEventListener("click", (event) => {
    const item = event.target.closest("li");
    if (item) location.assign(item.dataset.href);
  });
}
for (const dialog of $$("dialog")) dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

// Keys.

const rows = () => $$("main tbody tr").filter((row) => $("a[href]", row) && row.getClientRects().length);
const move = (step) => {
  const all = rows(), here = all.findIndex((row) => row.classList.contains("cursor"));
  const next = all[here < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(here + step, 0), all.length - 1)];
  if (!next) return;
  all[here]?.classList.remove("cursor");
  next.classList.add("cursor");
  $("a[href]", next).focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
};
const simple = {
  "/": () => $("[data-search]")?.focus(),
  "?": () => $("#help")?.showModal(),
  j: () => move(1),
  k: () => move(-1),
  p: () => indicator && !indicator.hidden && toggle(),
  t: theme,
  u: () => { const up = $(".crumbs a:last-of-type"); if (up) location.assign(up.href); },
};
let going = 0;
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k" && palette) {
    event.preventDefault();
    if (!palette.open) jump();
    return;
  }
  const typing = event.target.matches("input, textarea, select");
  if (typing && event.key === "Escape") event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
  if (going && Date.now() - going < 1500) {
    going = 0;
    const link = $(`.side nav a[data-go="${CSS.escape(event.key)}"]`);
    if (link) { event.preventDefault(); location.assign(link.href); return; }
  }
  if (event.key === "g") { going = Date.now(); return; }
  if (simple[event.key]) { event.preventDefault(); simple[event.key](); }
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-do]");
  if (!button) return;
  const what = button.dataset.do;
  if (what === "theme") theme();
  if (what === "help") $("#help").showModal();
  if (what === "palette") jump();
  if (what === "indent") {
    const area = $("textarea", button.form);
    try { area.value = JSON.stringify(JSON.parse(area.value), null, 2); } catch { area.focus(); }
  }
  if (what === "close") button.closest("dialog").close();
  if (what === "copy") {
    navigator.clipboard?.writeText($("pre", button.parentElement).textContent).then(() => {
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
});
// A form is submitted once.
document.addEventListener("submit", (event) => {
  if (event.target.method !== "post") return;
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "1";
  setTimeout(() => { delete event.target.dataset.sent; }, 4000);
});

// Charts show the values under the pointer.

const readAt = (chart, event) => {
  const data = JSON.parse(chart.dataset.chart), area = $(".plot-area", chart).getBoundingClientRect();
  const share = (event.clientX - area.left) / area.width;
  let best = 0;
  data.x.forEach((x, index) => { if (Math.abs(x - share) < Math.abs(data.x[best] - share)) best = index; });
  const cross = $(".cross", chart);
  cross.setAttribute("x1", `${data.x[best] * 100}%`);
  cross.setAttribute("x2", `${data.x[best] * 100}%`);
  cross.classList.add("on");
  for (const label of $$("[data-line]", chart)) label.textContent = data.y[label.dataset.line][best];
  $("h2", chart).dataset.title ??= $("h2", chart).textContent;
  $("h2", chart).textContent = `${$("h2", chart).dataset.title} at ${data.t[best]}`;
};
document.addEventListener("pointermove", (event) => {
  const chart = event.target.closest?.("[data-chart]");
  for (const other of $$("[data-chart] .cross.on")) if (!chart?.contains(other)) leave(other.closest("[data-chart]"));
  if (chart) readAt(chart, event);
});
const leave = (chart) => {
  $(".cross", chart).classList.remove("on");
  const title = $("h2", chart);
  if (title.dataset.title) { title.textContent = title.dataset.title; delete title.dataset.title; }
  const data = JSON.parse(chart.dataset.chart);
  for (const label of $$("[data-line]", chart)) label.textContent = data.y[label.dataset.line].findLast((value) => value !== "–") ?? "–";
};
