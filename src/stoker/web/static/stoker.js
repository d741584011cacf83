// Life on top of pages that are complete without it: theme, keys, ticking, copying, live parts. No inline handlers and
// no eval, so that the content security policy holds.
(() => {
  "use strict";
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const one = (selector) => document.querySelector(selector);
  const parsed = (html) => new DOMParser().parseFromString(html, "text/html");
  const send = (form, by) => fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form, by)), redirect: "manual" });
  for (const node of all("#save-view")) node.hidden = false;
  root.classList.add("scripted");

  // --- times: UTC as the server writes them, or this machine's zone --------------------------------------------------
  const zone = one("#zone");
  const parts = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" };
  const exact = new Intl.DateTimeFormat("sv-SE", { ...parts, fractionalSecondDigits: 3, timeZoneName: "short" });
  // As the server writes it, with the zone.
  const local = (at) => exact.format(at).replace(",", ".");
  const isLocal = () => localStorage.getItem("stoker-zone") === "local";
  const written = (at, form, timeZone) => new Intl.DateTimeFormat("en-GB", { ...form, timeZone }).format(at).replace(",", "");
  const [time, minute, day] = [{ timeStyle: "medium" }, { hour: "2-digit", minute: "2-digit" }, { day: "numeric", month: "short" }];
  const zoned = () => (isLocal() ? undefined : "UTC");
  window.stoker = { minute, day, written: (at, form) => written(at, form, zoned()) };
  // Today by its time, this year by its day, else with the year: as the server does.
  function clock(at, timeZone) {
    const [then, today] = [at, new Date()].map((one) => written(one, { dateStyle: "short" }, timeZone));
    if (then === today) return written(at, time, timeZone);
    return written(at, then.slice(6) === today.slice(6) ? { ...day, ...minute } : { ...day, year: "numeric" }, timeZone);
  }
  // What the server wrote says in which form; "3 min ago" is the same in every zone.
  const forms = [
    [/UTC$/, local],
    [/^\d\d:\d\d:\d\d$|^\d+ [A-Z][a-z]+ (\d\d:\d\d|\d{4})$/, (at) => clock(at)],
    [/^\d\d:\d\d$/, (at) => written(at, minute)],
    [/^\d+ [A-Z][a-z]+$/, (at) => written(at, day)],
  ];
  function inZone(text, at) {
    const form = forms.find(([pattern]) => pattern.test(text));
    return form ? form[1](at) : text;
  }
  function showZone() {
    const here = isLocal();
    if (zone) zone.textContent = here ? "Local times" : "Times in UTC";
    for (const node of all("time[datetime]")) {
      const at = new Date(node.dateTime);
      node.dataset.utc ??= node.textContent;
      node.dataset.title ??= node.title;
      node.textContent = here ? inZone(node.dataset.utc, at) : node.dataset.utc;
      node.title = here ? inZone(node.dataset.title, at) : node.dataset.title;
    }
  }
  zone?.addEventListener("click", () => {
    localStorage.setItem("stoker-zone", isLocal() ? "utc" : "local");
    showZone();
    document.dispatchEvent(new Event("stoker:zone"));
  });
  if (isLocal()) showZone();

  // --- forms: the theme changes at once, and what asks before it acts does so in a dialog; without script in a page -----
  const asks = one("#asks");
  document.addEventListener("submit", async (event) => {
    const { target: form, submitter: by } = event;
    if (by?.id === "theme") {
      event.preventDefault();
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = by.value = dark ? "light" : "dark";
      send(form, by);
    } else if (form.matches("[data-asks]")) {
      event.preventDefault();
      const answer = await send(form);
      const question = parsed(await answer.text()).querySelector("[data-question]");
      // Nothing was left to ask, so it is done; or it is refused, and the page that says so is asked for.
      if (!question) return answer.type === "opaqueredirect" ? location.reload() : form.submit();
      asks.replaceChildren(question);
      asks.showModal();
    }
  });
  asks?.addEventListener("click", (event) => {
    if (!event.target.matches("[data-no]")) return;
    event.preventDefault();
    asks.close();
  });

  // --- copying -------------------------------------------------------------------------------------------------------
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    toast("Copied");
  });
  function toast(text) {
    one(".toast")?.remove();
    const node = document.createElement("div");
    node.className = "toast";
    node.setAttribute("role", "status");
    node.textContent = text;
    document.body.append(node);
    setTimeout(() => node.remove(), 2500);
  }
  const note = one(".flash-note");
  if (note) {
    note.className = `toast${note.classList.contains("bad") ? " bad" : ""}`;
    if (!note.classList.contains("bad")) setTimeout(() => note.remove(), 10000);
  }

  // --- ticking rows --------------------------------------------------------------------------------------------------
  const bulk = one(".bulk");
  let last = null;
  function tally() {
    const boxes = all("tr input[name=id]");
    const ticked = boxes.filter((box) => box.checked);
    for (const box of boxes) box.closest("tr").classList.toggle("sel", box.checked);
    if (!bulk) return;
    bulk.hidden = !ticked.length;
    // Of a mixed selection each button says how many it is for.
    for (const button of all("button[data-for]", bulk)) {
      const n = ticked.filter((box) => button.dataset.for.split(" ").includes(box.dataset.status)).length;
      const name = (button.dataset.name ??= button.textContent);
      button.hidden = !n;
      button.textContent = n < ticked.length ? name.replace(/…?$/, (dots) => ` ${n}${dots}`) : name;
    }
    one("#picked").textContent = `${ticked.length} selected`;
  }
  if (bulk) bulk.hidden = true;
  tally();
  document.addEventListener("change", (event) => {
    if (event.target.name === "all") for (const box of all("tr input[name=id]")) box.checked = event.target.checked;
    if (event.target.name === "id" || event.target.name === "all") tally();
  });
  document.addEventListener("click", (event) => {
    const box = event.target.closest("tr input[name=id]");
    if (!box) return;
    if (event.shiftKey && last) reach(last, box);
    last = box;
  });
  function reach(from, to) {
    const boxes = all("tr input[name=id]");
    const [start, end] = [boxes.indexOf(from), boxes.indexOf(to)].sort((a, b) => a - b);
    for (const box of boxes.slice(start, end + 1)) box.checked = to.checked;
    tally();
  }
  const typed = one("#typed");
  if (typed) {
    const button = typed.form.querySelector("button");
    const check = () => (button.disabled = typed.value.replaceAll(",", "").trim() !== typed.dataset.count);
    typed.addEventListener("input", check);
    check();
  }

  // --- views that people save, in this browser -----------------------------------------------------------------------
  const views = () => JSON.parse(localStorage.getItem("stoker-views") ?? "[]");
  const menu = one("#views .menu-list");
  function showViews() {
    for (const node of all("#views .own")) node.remove();
    for (const [name, query] of views()) {
      const link = document.createElement("a");
      link.className = "own";
      link.href = `${one(".nav [data-go=j]").href}?q=${encodeURIComponent(query)}`;
      link.textContent = name;
      menu.insertBefore(link, one("#save-view"));
    }
  }
  if (menu) showViews();
  one("#save-view")?.addEventListener("click", () => {
    const query = new URLSearchParams(location.search).get("q") ?? "";
    const kept = views().filter(([, other]) => other !== query);
    localStorage.setItem("stoker-views", JSON.stringify([...kept, [query || "All jobs", query]].slice(-20)));
    showViews();
  });

  // --- keys ----------------------------------------------------------------------------------------------------------
  const keylist = one("#keylist");
  one("#keys")?.addEventListener("click", () => keylist.showModal());
  let going = 0;
  const rows = () => all(".table tbody tr").filter((row) => row.querySelector("a"));
  let at = -1;
  function go(step) {
    const list = rows();
    if (!list.length) return;
    at = Math.min(Math.max(at + step, 0), list.length - 1);
    list[at].querySelector("a").focus();
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      for (const open of all("details.menu[open]")) open.open = false;
      for (const box of all("tr input[name=id], input[name=all]")) box.checked = false;
      tally();
      if (event.target.matches?.("input")) event.target.blur();
      return;
    }
    if (event.target.closest("input, textarea, select, dialog[open]")) return;
    const place = Date.now() - going < 1500 && one(`.nav [data-go="${CSS.escape(event.key)}"]`);
    if (place) return place.click();
    const row = event.target.closest?.("tr");
    const act = {
      "/": () => one(".query input:not([type=hidden]), .find input").focus(),
      "?": () => keylist.showModal(),
      g: () => (going = Date.now()),
      j: () => go(1),
      k: () => go(-1),
      x: () => row?.querySelector("input[name=id]")?.click(),
      X: () => row && last && reach(last, row.querySelector("input[name=id]")),
      e: () => one(".bulk button[value=requeue]")?.click(),
      ".": () => hold(),
      t: () => one("#theme").click(),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  // --- live parts ----------------------------------------------------------------------------------------------------
  const live = one("#live");
  const stream = one("#stream");
  let held = false;
  let heard = Date.now();
  // When the figures of this page were last known to be true.
  let fresh = heard;
  let polling = 0;
  function say(word, look) {
    if (!live) return;
    const text = live.querySelector("span");
    if (text.textContent !== word) text.textContent = word;
    live.setAttribute("aria-pressed", String(!held));
    live.classList.toggle("stale", look === "stale");
  }
  function hold() {
    if (!live) return;
    held = !held;
    say(held ? "Held" : "Live");
  }
  live?.addEventListener("click", hold);
  const old = () => say(`Figures of ${clock(new Date(fresh), zoned())}`, "stale");
  // A row that is hovered, focused, ticked or open stays as it is; the others change in place and keep their order.
  const still = (row) => row.matches(":hover, :focus-within, .sel") || row.querySelector("details[open] form, input:checked");
  const owed = new Map();
  function morph(old, fresh) {
    // Another finding in the same place.
    const other = old.dataset?.about !== fresh.dataset?.about;
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || other) return old.replaceWith(fresh), true;
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return true;
    }
    if (old.dataset.row && old.matches("tr, li") && still(old)) return old.outerHTML === fresh.outerHTML;
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !["open", "hidden"].includes(name)) old.removeAttribute(name);
    }
    for (const { name, value } of [...fresh.attributes]) {
      if (old.getAttribute(name) !== value && !["open", "hidden"].includes(name)) old.setAttribute(name, value);
    }
    return [...fresh.children].some((child) => child.dataset.row) ? rowsOf(old, fresh) : childrenOf(old, fresh);
  }
  function childrenOf(old, fresh) {
    const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
    let whole = true;
    after.forEach((child, n) => (n < before.length ? (whole = morph(before[n], child) && whole) : old.append(child)));
    for (const child of before.slice(after.length)) child.remove();
    return whole;
  }
  function rowsOf(old, fresh) {
    const known = new Map([...old.children].map((child) => [child.dataset.row, child]));
    let whole = true;
    const come = [];
    for (const child of [...fresh.children]) {
      const there = known.get(child.dataset.row);
      known.delete(child.dataset.row);
      if (there) whole = morph(there, child) && whole;
      else come.push(child);
    }
    for (const gone of known.values()) come.length ? gone.replaceWith(come.shift()) : gone.remove();
    // Of a table above others they come with the next page.
    if (!old.closest(".steady")) old.append(...come);
    return whole;
  }
  // Findings come above all else on a page, and must not push it away: those that find no room wait behind a notice.
  const news = one("#news");
  function room(old, part) {
    const probe = part.cloneNode(true);
    probe.removeAttribute("id");
    probe.className = "probe";
    probe.style.width = `${old.offsetWidth}px`;
    old.after(probe);
    const fits = probe.offsetHeight <= old.parentNode.offsetHeight;
    probe.remove();
    if (fits) old.parentNode.style.minHeight = `${old.parentNode.offsetHeight}px`;
    return fits;
  }
  function notice(old, part) {
    const known = new Set(all("li", old).map((item) => item.dataset.about));
    const told = all("li", part).filter((item) => !known.has(item.dataset.about));
    const button = document.createElement("button");
    button.className = "btn sm";
    button.type = "button";
    const sentence = told[0]?.querySelector("div").cloneNode(true);
    sentence?.querySelectorAll("p, .fix").forEach((more) => more.remove());
    button.textContent = told.length > 1 ? `${told.length} new findings` : (sentence?.textContent.trim() ?? "Findings changed");
    button.addEventListener("click", () => {
      news.replaceChildren();
      old.parentNode.style.minHeight = "";
      morph(old, part);
    });
    news.replaceChildren(button);
  }
  function take(part) {
    const old = document.getElementById(part.id);
    if (!old) return;
    if (news && part.id === "live_issues") {
      if (!room(old, part)) return notice(old, part);
      news.replaceChildren();
    }
    const copy = part.cloneNode(true);
    if (morph(old, part)) owed.delete(copy.id);
    // Once nothing in it is held.
    else owed.set(copy.id, copy);
    if (isLocal()) showZone();
  }
  // Rows of jobs whose status has changed since the page was loaded turn grey: the page shows what was, not what is.
  function fade() {
    const { jobs, since } = one("#live_became")?.dataset ?? {};
    const now = new Map(jobs?.split(" ").map((entry) => entry.split("=")));
    for (const row of jobs === undefined ? [] : all("tr[data-job]")) {
      const { job, status } = row.dataset;
      const is = now.get(job) ?? (job > since ? "gone from this list" : status);
      row.title = is === status ? "" : `It is ${is} now`;
    }
  }
  const partsOf = (html) => all("[id^=live_]", parsed(html));
  if (stream) {
    stream.addEventListener("htmx:sse:before:message", (event) => {
      heard = Date.now();
      const { message } = event.detail;
      if (message.event === "away") return old();
      fresh = heard;
      if (message.event) return held ? undefined : say("Live");
      event.preventDefault();
      if (held) return;
      say("Live");
      for (const part of partsOf(message.data)) take(part);
      fade();
    });
    stream.addEventListener("htmx:sse:error", old);
    stream.addEventListener("htmx:response:error", () => poll());
    stream.addEventListener("htmx:error", () => poll());
    setInterval(() => {
      if (!document.hidden && !polling && Date.now() - heard > 20000) old();
    }, 5000);
    setInterval(() => {
      if (!held) for (const part of [...owed.values()]) take(part);
    }, 1000);
    addEventListener("pagehide", () => stream.remove());
    const title = document.title;
    new MutationObserver(() => {
      const heading = one("#live_head h1");
      if (heading) document.title = heading.textContent + title.slice(title.indexOf(" · "));
    }).observe(one("main"), { childList: true, subtree: true, characterData: true });
  }
  // A store that was away, or empty: the page is loaded again once it has more to show, and stands still until then.
  const waits = one("[data-again]");
  if (waits) {
    setInterval(async () => {
      const answer = document.hidden ? null : await fetch(location.href).catch(() => null);
      if (!answer?.ok) return;
      const fresh = parsed(await answer.text());
      if (waits.id === "first-run" && fresh.querySelector("#first-run")) {
        one("#live_head").replaceWith(fresh.querySelector("#live_head"));
      } else location.reload();
    }, waits.dataset.again * 1000);
  }
  // A server that refuses the stream is asked for the parts from time to time instead.
  function poll() {
    if (polling) return;
    say("Not live", "stale");
    const url = stream.getAttribute("hx-sse:connect").replace("/live?", "/pieces?");
    polling = setInterval(async () => {
      if (held || document.hidden) return;
      const answer = await fetch(url);
      if (answer.ok) for (const part of partsOf(await answer.text())) take(part);
      fade();
    }, 15000);
  }

  // --- the next fires of what is typed into the form of a schedule ----------------------------------------------------
  const planned = one("form[data-preview]");
  let asked = 0;
  planned?.addEventListener("input", (event) => {
    if (!["cron", "tz"].includes(event.target.name)) return;
    clearTimeout(asked);
    asked = setTimeout(async () => {
      const typed = new URLSearchParams({ cron: planned.cron.value, tz: planned.tz.value });
      const answer = await fetch(`${planned.dataset.preview}?${typed}`);
      const found = parsed(await answer.text()).querySelector("#fires");
      if (answer.ok && found) morph(one("#fires"), found);
    }, 250);
  });
  const nav = one(".nav");
  const current = nav?.querySelector("[aria-current]");
  if (current) nav.scrollLeft = current.offsetLeft - nav.clientWidth / 2;
})();
