// Drives a real browser over the console: node browser.mjs CONFIG, where CONFIG is a JSON file
// {modules, chromium, control, plain, hostile, key, hostileKey, pages, hostilePages, shots}. Prints a line for each check: {"check", "error"}.
import { createRequire } from "node:module";
import { readFileSync, mkdirSync } from "node:fs";

const config = JSON.parse(readFileSync(process.argv[2], "utf8"));
const require = createRequire(config.modules + "/");
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const patience = 60000;
const browser = await chromium.launch({ executablePath: config.chromium, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });

async function check(name, body) {
  let error = "";
  try {
    await body();
  } catch (e) {
    error = String((e && e.stack) || e);
  }
  console.log(JSON.stringify({ check: name, error }));
}

function must(what, truth) {
  if (!truth) throw new Error(what);
}

// act has the test do something as a host or a person would, and gives back what came of it.
async function act(name, body = {}) {
  const answer = await fetch(config.control + "/" + name, { method: "POST", body: JSON.stringify(body) });
  const text = await answer.text();
  if (!answer.ok) throw new Error(name + ": " + text);
  return JSON.parse(text);
}

// open makes a window of its own that is signed in, and keeps what the pages complain of.
async function open(base, key, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, bypassCSP: false, ...options });
  context.setDefaultTimeout(patience);
  const page = await context.newPage();
  const complaints = [];
  page.on("console", (m) => {
    if ((m.type() === "error" || m.type() === "warning") && !m.location().url.endsWith("/no-such-page")) complaints.push(m.text());
  });
  page.on("pageerror", (e) => complaints.push(String(e)));
  page.on("dialog", (d) => {
    complaints.push("a dialog: " + d.message());
    d.dismiss();
  });
  page.on("request", (r) => {
    if (!r.url().startsWith(base)) complaints.push("a request to elsewhere: " + r.url());
  });
  if (key) {
    await page.goto(base + "/login");
    await page.fill("#key", key);
    await page.click("button.primary");
    await page.waitForSelector(".brand + nav");
  }
  return { context, page, complaints, base, go: (path) => page.goto(base + path) };
}

// serious runs axe in the page without loosening its policy: through the debugger, not by a script element.
async function serious(page) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  return found.violations
    .filter((v) => v.impact === "serious" || v.impact === "critical")
    .map((v) => v.id + " " + v.nodes.map((n) => n.html.slice(0, 200) + " " + n.failureSummary).join("\n"));
}

const wide = () => document.documentElement.scrollWidth - document.documentElement.clientWidth;

for (const scheme of ["light", "dark"]) {
  const w = await open(config.plain, config.key, { colorScheme: scheme });
  for (const path of config.pages) {
    await check(`${scheme} ${path}`, async () => {
      await w.go(path);
      await w.page.waitForSelector("h1");
      const found = await serious(w.page);
      must(found.join("\n"), !found.length);
      must("the page complains: " + w.complaints.join("\n"), !w.complaints.length);
      const dark = await w.page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).reduce((a, b) => a + Number(b), 0) < 200);
      must(`the page is ${dark ? "dark" : "light"}`, dark === (scheme === "dark"));
    });
    w.complaints.length = 0;
  }
  await w.context.close();

  const out = await open(config.plain, "", { colorScheme: scheme });
  await check(`${scheme} sign-in`, async () => {
    await out.go("/login");
    const found = await serious(out.page);
    must(found.join("\n"), !found.length);
    must(out.complaints.join("\n"), !out.complaints.length);
  });
  await out.context.close();

  if (scheme === "dark") continue; // its layout is the same
  const phone = await open(config.plain, config.key, { colorScheme: scheme, viewport: { width: 360, height: 740 }, hasTouch: true });
  for (const path of config.pages) {
    await check(`phone ${scheme} ${path}`, async () => {
      await phone.go(path);
      await phone.page.waitForSelector("h1");
      must("it is wider than the screen by " + (await phone.page.evaluate(wide)), (await phone.page.evaluate(wide)) <= 0);
      const found = await serious(phone.page);
      must(found.join("\n"), !found.length);
    });
  }
  await phone.context.close();
}

{
  const w = await open(config.hostile, config.hostileKey, { viewport: { width: 360, height: 740 } });
  for (const path of config.hostilePages) {
    await check(`harmless ${path}`, async () => {
      await w.go(path);
      await w.page.waitForSelector("h1");
      // The stream has been opened and the page made once more by the script, which is another way for text to become a page.
      if (await w.page.evaluate(() => document.body.dataset.live)) await w.page.waitForFunction(() => document.getElementById("link").textContent === "live");
      const state = await w.page.evaluate(() => ({
        hit: window.hit,
        address: location.href,
        odd: [...document.querySelectorAll("main script, main img, main iframe, main object, main base, main meta, main style, [onerror], [onload], [onfocus], [onclick], a[href^='javascript' i], form[action*='evil']")].map((e) => e.outerHTML.slice(0, 200)),
        away: [...document.querySelectorAll("a[href], form[action]")].map((e) => e.href || e.action).filter((u) => typeof u === "string" && new URL(u).origin !== location.origin),
      }));
      must("a payload ran", state.hit === undefined);
      must("there are elements of a payload: " + state.odd.join("\n"), !state.odd.length);
      must("something leads away: " + state.away.join("\n"), !state.away.length);
      must("the page is another: " + state.address, state.address === config.hostile + path);
      must("the page complains: " + w.complaints.join("\n"), !w.complaints.length);
      must("it is too wide by " + (await w.page.evaluate(wide)), (await w.page.evaluate(wide)) <= 0);
    });
    w.complaints.length = 0;
  }
  await w.context.close();
}

await check("a run appears and goes on without a reload", async () => {
  const w = await open(config.plain, config.key);
  await w.go("/runs");
  await w.page.waitForFunction(() => document.getElementById("link").textContent === "live");
  await w.page.evaluate(() => (window.same = true));
  const { run } = await act("begin", { conversation: "live", text: "Look at it" });
  await w.page.waitForSelector(`#run-${run} .state.busy`);
  must("the list was reloaded", await w.page.evaluate(() => window.same));
  await w.go("/runs/" + run);
  await w.page.waitForFunction(() => document.getElementById("link").textContent === "live");
  await w.page.evaluate(() => (window.same = true));
  await act("event", { run, type: "run.text", text: "I look at it now" });
  await w.page.getByText("I look at it now").waitFor();
  await act("event", { run, type: "run.tool", tool: "mcp__crm__find" });
  await w.page.locator("#events").getByText("mcp__crm__find").waitFor();
  await act("finish", { run, reply: "It is done, look" });
  await w.page.locator(".reply").getByText("It is done, look").waitFor();
  await w.page.locator("#head .state.good").waitFor();
  await w.page.waitForFunction(() => document.getElementById("says").textContent === "Run is ok");
  must("a line stands twice", (await w.page.locator("#events").getByText("I look at it now").count()) === 1);
  must("the page was reloaded", await w.page.evaluate(() => window.same));
  must(w.complaints.join("\n"), !w.complaints.length);
  await w.context.close();
});

await check("a call is approved by keyboard alone, from the sign-in on", async () => {
  const { run } = await act("begin", { conversation: "by-key", text: "Refund it" });
  const { approval } = await act("ask", { run, tool: "refund" });
  const w = await open(config.plain, "");
  await w.go("/approvals");
  await w.page.waitForSelector("#key:focus"); // by itself: a person types at once
  await w.page.keyboard.type(config.key);
  await w.page.keyboard.press("Enter");
  await w.page.waitForSelector(`#approval-${approval}`);
  // The way of the tab key to the button, with the focus seen at each step.
  let at = "";
  for (let i = 0; i < 200 && at !== "here"; i++) {
    await w.page.keyboard.press("Tab");
    at = await w.page.evaluate((id) => {
      const e = document.activeElement;
      if (e === document.body) return "body";
      const outline = getComputedStyle(e);
      if (outline.outlineStyle === "none" && !e.matches("main")) return "unseen: " + e.outerHTML.slice(0, 120);
      return e.matches(`#approval-${id} button[value=approve]`) ? "here" : "";
    }, approval);
    must(at, !at.startsWith("unseen"));
  }
  must("the button is not reached", at === "here");
  await w.page.keyboard.press("Enter");
  await w.page.getByText("Approved. The call goes on.").waitFor();
  const { state, by } = await act("approval", { run, approval });
  must(`the host sees ${state} by ${by}`, state === "approved" && by === "key ann");
  await w.context.close();
});

await check("a call is denied with a reason, a question answered, and an open list tells of both", async () => {
  const { run } = await act("begin", { conversation: "by-mouse", text: "Delete it" });
  const w = await open(config.plain, config.key);
  await w.go("/approvals");
  await w.page.waitForFunction(() => document.getElementById("link").textContent === "live");
  await w.page.evaluate(() => (window.same = true));
  const first = await act("ask", { run, tool: "delete" });
  await w.page.waitForSelector(`#approval-${first.approval}`);
  await w.page.fill(`#reason-${first.approval}`, "not this one");
  // Another one comes while the reason is written: what was written stays.
  const second = await act("ask", { run, question: "Which one?", choices: ["left", "right"] });
  await w.page.waitForSelector(`#approval-${second.approval}`);
  must("what was written is gone", (await w.page.inputValue(`#reason-${first.approval}`)) === "not this one");
  must("the page was reloaded", await w.page.evaluate(() => window.same));
  await w.page.click(`#approval-${first.approval} button[value=deny]`);
  await w.page.getByText("Denied. The agent is told why.").waitFor();
  const denied = await act("approval", { run, approval: first.approval });
  must(JSON.stringify(denied), denied.state === "denied" && denied.reason === "not this one");
  await w.page.click(`#approval-${second.approval} label:has-text("right")`);
  await w.page.click(`#approval-${second.approval} button[value=answer]`);
  await w.page.getByText("The answer is on its way").waitFor();
  const answered = await act("approval", { run, approval: second.approval });
  must(JSON.stringify(answered), answered.state === "answered" && answered.reason === "right");
  await w.context.close();
});

await check("a message is sent and its run stopped", async () => {
  const w = await open(config.plain, config.key);
  await w.go("/conversations");
  await w.page.fill("#conversation", "written here");
  await w.page.fill("#text", "First line\nsecond line");
  await w.page.click("button:has-text('Send')");
  await w.page.getByText("The message was sent.").waitFor();
  must("lines are lost", (await w.page.locator("article .said-text").first().innerText()) === "First line\nsecond line");
  await w.page.click("summary:has-text('Stop the run')");
  await w.page.fill("details[open] input[name=reason]", "asked the wrong one");
  await w.page.click("button:has-text('Stop this run')");
  await w.page.getByText("The run is asked to stop.").waitFor();
  await w.page.locator("#head").getByText("stopped", { exact: true }).waitFor();
  await w.context.close();
});

await check("without the script each page is there, and a form works", async () => {
  const w = await open(config.plain, config.key, { javaScriptEnabled: false });
  await w.go("/runs");
  must("times are not said in UTC", (await w.page.locator("tbody time").first().innerText()).endsWith(" UTC"));
  await w.page.selectOption("#show", "failed");
  await w.page.click("button:has-text('Filter')");
  await w.page.locator("tbody .state.bad").first().waitFor();
  await w.context.close();
});

await check("a time is said in the browser's zone", async () => {
  const w = await open(config.plain, config.key, { timezoneId: "Asia/Tokyo", locale: "en-GB" });
  await w.go("/audit");
  const [stamp, text, title] = await w.page.locator("tbody time").first().evaluate((t) => [t.dateTime, t.textContent, t.title]);
  const tokyo = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium", timeZone: "Asia/Tokyo" }).format(new Date(stamp));
  must(`${stamp} is ${text}, not ${tokyo}`, text.endsWith(tokyo));
  must("UTC is not at hand: " + title, title.includes("UTC"));
  await w.context.close();
});

await check("an open page of a key that is revoked ends", async () => {
  const { secret } = await act("key", { name: "short" });
  const w = await open(config.plain, secret);
  await w.go("/runs");
  await w.page.waitForFunction(() => document.getElementById("link").textContent === "live");
  await act("revoke", { name: "short" });
  await w.page.waitForURL("**/login**");
  await w.go("/runs");
  must("it is still signed in", new URL(w.page.url()).pathname === "/login");
  await w.context.close();
});

if (config.shots) {
  mkdirSync(config.shots, { recursive: true });
  for (const [name, options] of Object.entries({ light: {}, dark: { colorScheme: "dark" }, phone: { viewport: { width: 360, height: 740 } } })) {
    const w = await open(config.plain, config.key, options);
    for (const path of ["/login", ...config.pages]) {
      await w.go(path);
      await w.page.waitForSelector("h1");
      await w.page.screenshot({ path: `${config.shots}/${path.replace(/[^a-z0-9]+/gi, "_").slice(0, 24)}-${name}.png`, fullPage: true });
    }
    await w.context.close();
  }
}
await browser.close();
