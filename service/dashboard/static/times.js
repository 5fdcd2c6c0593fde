/* Times as "5 min ago"; where one points at them, in the reader's zone, with its name. Without this script they are UTC. */
"use strict";
(() => {
  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

  function ago(time) {
    const seconds = Math.max(0, (Date.now() - time) / 1000);
    if (seconds < 5) return "just now";
    const [size, unit] = UNITS.find(([size]) => seconds >= size);
    return `${Math.floor(seconds / size)} ${unit} ago`;
  }

  function tell() {
    for (const node of document.querySelectorAll("time")) {
      const time = new Date(node.dateTime);
      node.title = local.format(time);
      node.textContent = ago(time);
    }
  }

  tell();
  setInterval(() => document.hidden || tell(), 30000);
  document.addEventListener("admeta:changed", tell);
})();
