/* Updates a page while its study runs: when an event arrives, the page is read again. A page without events
   (data-every) is read every few seconds.
   Owns the parts marked data-live, the status line and the copy buttons; charts listen to "admeta:changed". */
"use strict";
(() => {
  const REST_MS = 2000; // between two readings
  const KINDS = [
    "study.created", "study.state", "study.extended", "study.deleted", "trial.created", "trial.started", "trial.waiting", "trial.finished",
    "run.created", "run.started", "run.waiting", "run.finished", "metric", "gap",
  ];
  const status = document.querySelector("[data-live-status]");
  const address = document.body.dataset.events;
  const every = Number(document.body.dataset.every || 0);
  let source = null, last = null, waiting = false, readAt = 0;

  function say(text, on) {
    status.textContent = text;
    status.classList.toggle("on", on);
    status.hidden = false;
  }

  /* What is open stays open, by its title. */
  function renew(node, fresh) {
    const titles = (part) => [...part.querySelectorAll("details")].map((one) => [one, one.querySelector("summary").textContent]);
    const open = new Set(titles(node).filter(([one]) => one.open).map(([, title]) => title));
    node.innerHTML = fresh.innerHTML;
    for (const [one, title] of titles(node)) if (open.has(title)) one.open = true;
  }

  async function reread() {
    waiting = false;
    readAt = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (!answer.ok) throw new Error(answer.status);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelectorAll("[data-live]");
      const shown = document.querySelectorAll("[data-live]");
      if (fresh.length !== shown.length) return location.reload();
      shown.forEach((node, i) => { if (!("drawn" in node.dataset || node.contains(document.activeElement))) renew(node, fresh[i]); });
      document.dispatchEvent(new Event("admeta:changed"));
      if (every) say("live", true);
      else if (!page.body.dataset.events) { source?.close(); say("finished", false); }
    } catch (error) {
      say("the service does not answer; trying again", false);
    }
  }

  function happened(event) {
    last = event.lastEventId || last;
    if (waiting) return;
    waiting = true;
    setTimeout(reread, Math.max(150, readAt + REST_MS - Date.now()));
  }

  function follow() {
    const url = new URL(address, location.href);
    if (last) url.searchParams.set("after", last);
    source = new EventSource(url);
    source.onopen = () => say("live", true);
    source.onerror = () => {
      const ended = source.readyState === EventSource.CLOSED; // the study has ended, and all events were sent
      say(ended ? "no longer live; reload to see changes" : "connection lost; trying again", false);
    };
    for (const kind of KINDS)
      source.addEventListener(kind, happened);
  }

  if (address) {
    follow();
    document.addEventListener("visibilitychange", () => { // a browser has six connections for all its tabs
      source.close();
      if (!document.hidden) { follow(); happened({}); }
    });
    addEventListener("pagehide", () => source.close());
  }

  if (every) {
    say("live", true);
    setInterval(() => document.hidden || reread(), 1000 * every);
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const node = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(node.textContent);
      button.textContent = "Copied";
    } catch (error) { // without TLS, or not allowed: select it, so that a key copies it
      getSelection().selectAllChildren(node);
      button.textContent = "Selected: press Ctrl-C";
    }
  });
})();
