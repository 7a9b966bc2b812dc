// Keeps pages fresh: the stream says that something changed, the page is fetched again, and the parts of it that differ are replaced. Times are said in
// the browser's zone. Everything works without this script, by reloading.
"use strict";

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

function localize(root) {
  const today = day.format(new Date());
  for (const time of root.querySelectorAll("time:not([title])")) {
    const at = new Date(time.dateTime);
    if (isNaN(at)) continue;
    const on = day.format(at);
    time.title = whole.format(at) + " (" + time.textContent + ")";
    time.textContent = on === today ? clock.format(at) : on + ", " + clock.format(at);
  }
}

function words(ms) {
  const s = Math.max(0, Math.round(ms / 1000)), two = (n) => String(n).padStart(2, "0");
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + two(s % 60) + " s";
  return Math.floor(s / 3600) + " h " + two(Math.floor((s % 3600) / 60)) + " min";
}

// What the server's clock is ahead: deadlines and beginnings are by it.
let ahead = 0;
function hearClock(response) {
  const at = Date.parse(response.headers.get("Date"));
  if (!isNaN(at)) ahead = at - Date.now();
}

function count() {
  const now = Date.now() + ahead;
  for (const due of document.querySelectorAll("[data-deadline]")) {
    const left = Date.parse(due.dataset.deadline) - now;
    due.textContent = left > 0 ? words(left) + " left" : "time is over";
  }
  for (const span of document.querySelectorAll("[data-since]")) span.textContent = words(now - Date.parse(span.dataset.since));
}

// What the server sent for an element, to tell whether it sends something else now. Tokens of forms, and how long ago it is, change without meaning.
const sent = new WeakMap();
function source(element) {
  return element.outerHTML.replace(/name="idempotency" value="[^"]*"|(?<=data-since="[^"]*">)[^<]*/g, "");
}
function remember(root) {
  for (const element of root.querySelectorAll("[data-part], [data-list] > *, [data-grow] > *")) sent.set(element, source(element));
}

// An element is busy while somebody writes in it or has opened what it hides.
function busy(element) {
  const active = document.activeElement;
  if (active && element.contains(active) && active.matches("input, textarea, select, button, summary")) return true;
  if (element.querySelector("details.act[open]")) return true;
  for (const field of element.querySelectorAll("textarea, input:not([type=hidden])")) {
    if (field.type === "radio" || field.type === "checkbox" ? field.checked !== field.defaultChecked : field.value !== field.defaultValue) return true;
  }
  return false;
}

function say(text) {
  const out = document.getElementById("says");
  if (text && out.textContent !== text) out.textContent = text;
}

function heard(before, after) {
  const was = before && before.querySelector("[data-say]"), is = after.querySelector("[data-say]");
  if (is && (!was || was.dataset.say !== is.dataset.say)) say(is.dataset.say);
}

// over is whether an element may be replaced although it is busy: what it asks for is decided.
function over(before, after) {
  return before.querySelector(".decide, details.act") && !after.querySelector(".decide, details.act");
}

function replace(before, after) {
  const html = source(after);
  if (sent.get(before) === html || (busy(before) && !over(before, after))) return;
  heard(before, after);
  const active = document.activeElement;
  const focus = active && before.contains(active) ? { id: active.id, href: active.getAttribute("href") } : null;
  const open = [...before.querySelectorAll("details[open] > summary")].map((s) => s.textContent);
  sent.set(after, html);
  localize(after);
  before.replaceWith(after);
  for (const summary of after.querySelectorAll("details > summary")) if (open.includes(summary.textContent)) summary.parentElement.open = true;
  if (focus) {
    const again = (focus.id && document.getElementById(focus.id)) || [...after.querySelectorAll("a")].find((a) => focus.href && a.getAttribute("href") === focus.href);
    (again || document.getElementById("main")).focus({ preventScroll: true });
  }
}

function add(list, child, before, fresh) {
  sent.set(child, source(child));
  localize(child);
  if (fresh) child.classList.add("fresh");
  list.insertBefore(child, before);
  if (fresh) heard(null, child);
}

// A list's children are known by their ids.
function merge(list, from, keep) {
  const old = new Map([...list.children].map((c) => [c.id, c]));
  let place = keep ? null : list.firstElementChild;
  for (const child of [...from.children]) {
    const have = old.get(child.id);
    old.delete(child.id);
    if (!have) add(list, child, place, true);
    else if (keep) replace(have, child);
    else {
      const next = have.nextElementSibling;
      if (have !== place) list.insertBefore(have, place);
      else place = next;
      replace(have, child);
    }
  }
  if (!keep) for (const gone of old.values()) if (!busy(gone) || gone.querySelector(".decide")) gone.remove();
}

let fetching = false, again = false;
async function refresh() {
  if (fetching) {
    again = true;
    return;
  }
  fetching = true;
  try {
    const address = new URL(location.href);
    address.searchParams.delete("said");
    const grows = document.querySelector("[data-grow]");
    if (grows) {
      if (grows.hasAttribute("data-more")) return;
      address.searchParams.set("after", grows.dataset.last);
    }
    const response = await fetch(address);
    hearClock(response);
    if (new URL(response.url).pathname === "/login") return signedOut();
    if (!response.ok) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const part of document.querySelectorAll("[data-part]")) {
      const fresh = page.getElementById(part.id);
      if (fresh) replace(part, fresh);
    }
    for (const list of document.querySelectorAll("[data-list]")) {
      const fresh = page.getElementById(list.id);
      if (fresh) merge(list, fresh, false);
    }
    const fresh = grows && page.getElementById(grows.id);
    if (fresh) {
      merge(grows, fresh, true);
      grows.dataset.last = fresh.dataset.last;
      if (fresh.hasAttribute("data-more")) again = true;
    }
    count();
    if (!page.body.dataset.live) {
      delete document.body.dataset.live;
      disconnect("");
    }
  } catch {
    // The stream says that the hub is away, and this is done again when it is back.
  } finally {
    fetching = false;
    if (again) {
      again = false;
      refresh();
    }
  }
}

let stream = null;
function status(text) {
  const link = document.getElementById("link");
  if (link && link.textContent !== text) link.textContent = text;
}
function disconnect(text) {
  if (stream) stream.close();
  stream = null;
  status(text);
}
function signedOut() {
  disconnect("signed out");
  location.assign("/login?next=" + encodeURIComponent(location.pathname + location.search));
}
let retry = 0;
function connect() {
  if (stream || !document.body.dataset.live || document.hidden) return;
  stream = new EventSource(document.body.dataset.live);
  stream.onopen = () => {
    retry = 0;
    status("live");
    refresh(); // what happened since the page was made
  };
  stream.addEventListener("changed", refresh);
  stream.addEventListener("over", signedOut);
  stream.onerror = () => {
    status("not connected, trying again");
    if (stream && stream.readyState === EventSource.CLOSED) {
      // Refused, not cut: the browser would not try again. A page that is fetched says why.
      stream = null;
      refresh();
      setTimeout(connect, Math.min(30000, 1000 * 2 ** retry++));
    }
  };
}
// A browser has few connections to one host: pages that nobody looks at give theirs back.
document.addEventListener("visibilitychange", () => (document.hidden ? disconnect("") : connect()));
addEventListener("pagehide", () => disconnect(""));
addEventListener("pageshow", (e) => {
  if (e.persisted) connect();
});

remember(document);
localize(document);
count();
setInterval(count, 1000);
connect();
