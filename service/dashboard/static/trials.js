/* The table of trials, once the data is there: sorted by any column, filtered by state and by conditions. */
"use strict";
(() => {
  const AT_ONCE = 100, box = document.getElementById("trial-table"), form = document.getElementById("trial-filters");
  const CONDITION = /^([\w.]+)\s*(<=|>=|!=|=|<|>)\s*(.+)$/;
  const OPERATIONS = { "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b, "=": (a, b) => String(a) === String(b), "!=": (a, b) => String(a) !== String(b) };
  let found = null, columns = [], key = null, down = false, shown = AT_ONCE;

  const make = (tag, properties = {}, ...children) => { const node = Object.assign(document.createElement(tag), properties); node.append(...children); return node; };
  const text = (value) => (value === null || value === undefined ? "–" : typeof value === "number" ? Charts.number(value) : typeof value === "string" ? value : JSON.stringify(value));

  /* What each column holds, by the name that a condition uses. */
  function describe() {
    const state = (i) => make("span", { className: "state state-" + found.state[i].toLowerCase(), textContent: found.state[i].toLowerCase() });
    return [
      { name: "trial", title: "Trial", values: found.number, number: true, cell: (i) => make("a", { href: Search.root.dataset.trials + found.number[i], textContent: found.number[i] }) },
      { name: "state", title: "State", values: found.state, cell: state },
      { name: found.metric, title: found.metric, values: found.value, number: true },
      ...Object.entries(found.params).map(([name, values]) => ({ name, title: name, values, number: true })),
      { name: "epochs", title: "Epochs", values: found.epoch, number: true },
      { name: "runs", title: "Runs", values: found.runs, number: true },
      { name: "failure", title: "What happened", values: found.failure, cell: (i) => (found.failure[i] || "").replaceAll("_", " ") },
    ];
  }

  /* "lr < 0.01, lambd >= 0.1" as a test of a row; an error says what cannot be read. */
  function conditions(written) {
    return written.split(",").map((part) => part.trim()).filter(Boolean).map((part) => {
      const [, name, operation, value] = part.match(CONDITION) || [];
      const column = columns.find((one) => one.name === name);
      if (!column) throw new Error(`“${part}” is not a condition; write a column, < <= = != >= or >, and a value. Columns: ${columns.map((one) => one.name).join(", ")}.`);
      const than = value.trim() !== "" && !Number.isNaN(Number(value)) ? Number(value) : value.trim();
      return (i) => column.values[i] !== null && column.values[i] !== undefined && OPERATIONS[operation](column.values[i], than);
    });
  }

  function compare(a, b) {
    const [x, y] = [key.values[a], key.values[b]];
    const [none, other] = [x === null || x === undefined, y === null || y === undefined];
    if (none || other) return none - other;
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(text(x)).localeCompare(String(text(y)));
    return (down ? -order : order) || found.number[a] - found.number[b];
  }

  function head() {
    return make("thead", {}, make("tr", {}, ...columns.map((column) => {
      const button = make("button", { type: "button", className: "sort", textContent: column.title });
      button.addEventListener("click", () => { down = key === column ? !down : false; key = column; Address.set("sort", (down ? "-" : "") + key.name); render(); box.querySelectorAll(".sort")[columns.indexOf(column)].focus(); });
      const cell = make("th", { scope: "col", className: column.number ? "num" : "" }, button);
      if (column === key) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      return cell;
    })));
  }

  function render() {
    let tests;
    try { tests = conditions(form.elements.where.value); } catch (error) { return box.replaceChildren(make("p", { className: "bad", textContent: error.message })); }
    tests.push(Search.isChosen);
    if (form.elements.state.value) tests.push((i) => found.state[i] === form.elements.state.value);
    const rows = found.number.map((_, i) => i).filter((i) => tests.every((test) => test(i))).sort(compare);
    const body = make("tbody", {}, ...rows.slice(0, shown).map((i) => make("tr", {}, ...columns.map((column, k) => {
      const cell = make(k ? "td" : "th", { className: column.number ? "num" : column.name === "failure" ? "fit" : "" }, column.cell ? column.cell(i) : text(column.values[i]));
      if (!k) cell.scope = "row";
      else if (column.name !== "state" && column.name !== "failure") cell.dataset.name = column.title;
      return cell;
    }))));
    const wide = make("div", { className: "wide", tabIndex: 0 }, make("table", { className: "fold flow sorted" }, head(), body));
    wide.setAttribute("role", "region");
    wide.setAttribute("aria-label", "Trials");
    const note = make("p", { className: "quiet note", textContent: rows.length ? `${Math.min(shown, rows.length)} of ${rows.length} trials${rows.length < found.number.length ? ` that fit, ${found.number.length} in all` : ""}. ` : "No trial fits. " });
    if (rows.length > shown) {
      const more = make("button", { type: "button", className: "plain", textContent: `Show ${Math.min(AT_ONCE, rows.length - shown)} more` });
      more.addEventListener("click", () => { shown += AT_ONCE; render(); });
      note.append(more);
    }
    box.replaceChildren(wide, note);
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => { if (found) { shown = AT_ONCE; render(); } });
  document.addEventListener("search:chosen", () => { if (found) { shown = AT_ONCE; render(); } });
  Search.onData((data) => {
    if (!data.number.length) return; // the text from the server remains
    const asked = Address.get("sort"), before = key?.name ?? asked?.replace(/^-/, "");
    if (!key) down = asked ? asked.startsWith("-") : data.direction === "maximize";
    found = data;
    columns = describe();
    key = columns.find((one) => one.name === before) || columns[2];
    box.dataset.drawn = "";
    form.classList.add("drawn");
    if (!box.contains(document.activeElement)) render();
  });
})();
